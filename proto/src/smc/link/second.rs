//! The second link of a group: offered by the server, accepted by the client, confirmed by both; and again, where one of two
//! was lost.
//!
//! The server begins as soon as the first link is confirmed. The keys of the memories that there are go with the
//! messages (version 2); those of later ones are announced by Confirm Rkey. A link that does not come up leaves the
//! group as it was. The part of [`Group`] that Linux has in `smc_llc_srv_add_link` and `smc_llc_cli_add_link`.

use super::one::{Link, NewLink, Stage};
use super::peer_keys::Name;
use super::timers::{AGAIN, AGAIN_MOST, OfGroup, OfLink, SECOND};
use super::{Event, Group, GroupError, LINKS, State};
use crate::smc::Time;
use crate::smc::handshake::Role;
use crate::smc::list::List;
use crate::smc::llc::{AddKind, AddLink, Family, LinkReason, Message, RequestAddLink};

/// Reason of a rejected Add Link in version 1: no alternate path.
const NO_ALTERNATE_PATH: u8 = 1;

/// Attempts at a second link after the first one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Again {
    /// A link was lost and no other has come up since.
    lost: bool,
    /// The wait after the next attempt.
    wait: Time,
    /// When the last attempt began.
    tried: Time,
}

impl Group {
    /// Where a link can be made beside the one that is left. What used an earlier one there has to have gone.
    pub fn vacant(&self) -> Option<usize> {
        let left = self.usable()?;
        (0..LINKS).find(|place| *place != left && self.is_over(*place))
    }

    /// Server, after [`Event::SecondLinkDue`]: offers this end of a second link to the client. The link's place.
    pub fn offer_link(&mut self, now: Time, own: &NewLink) -> Result<usize, GroupError> {
        let fits = self.config.role == Role::Server && self.config.family == Family::V2;
        let (Some(by), Some(place)) = (self.usable(), self.vacant().filter(|_| fits)) else {
            return Err(GroupError::Unavailable);
        };
        if self.transmit.is_full() {
            return Err(GroupError::Backlog);
        }
        let number = self.next_number(by);
        self.make_second(place, number, Stage::Offered, own, now);
        self.send(by, Message::AddLink(own.message(AddKind::Request, number, &self.config)), None);
        Ok(place)
    }

    /// Server, after [`Event::SecondLinkDue`], where there is no second device and the client is Linux: it waits for a
    /// request, and gets one that it rejects at once.
    pub fn forgo_link(&mut self) {
        if self.is_active(0) {
            self.send(0, Message::AddLink(self.config.void_add_link()), None);
        }
    }

    /// Client, after [`Event::LinkOffered`]: this end of the second link, whose queue pair is in RTR. Its place.
    pub fn accept_link(&mut self, now: Time, own: &NewLink) -> Result<usize, GroupError> {
        let (Some(by), Some(place), Some(offer)) = (self.usable(), self.vacant(), self.offered) else {
            return Err(GroupError::Unavailable);
        };
        if self.transmit.is_full() {
            return Err(GroupError::Backlog);
        }
        self.offered = None;
        self.numbered = offer.link;
        self.make_second(place, offer.link, Stage::Confirming, own, now);
        self.learn_keys(&offer, by, place);
        self.send(by, Message::AddLink(own.message(AddKind::Accept, offer.link, &self.config)), None);
        Ok(place)
    }

    /// Client, after [`Event::LinkOffered`]: there is no device to match.
    pub fn reject_link(&mut self) {
        if let (Some(offer), Some(by)) = (self.offered.take(), self.usable()) {
            self.reject(by, offer);
        }
    }

    /// A port has come up that a second link may use: a server tries soon, a client asks it to.
    pub fn retry_link(&mut self, now: Time) {
        self.clock = now;
        let (Some(by), true) = (self.usable(), self.vacant().is_some()) else { return };
        match self.config.role {
            Role::Server => self.hasten(),
            Role::Client if self.has_more_links() => {
                let request = RequestAddLink { response: false, gids: List::new() };
                self.send(by, Message::RequestAddLink(request), None);
            }
            Role::Client => {}
        }
    }

    fn has_more_links(&self) -> bool {
        self.config.max_links > 1 && self.config.family == Family::V2
    }

    fn make_second(&mut self, place: usize, number: u8, stage: Stage, own: &NewLink, now: Time) {
        let mut link = Link::second(&self.config, number, stage, own, now);
        link.timers.set(OfLink::Confirm, now + SECOND);
        self.links[place] = Some(link);
        self.peer_keys.forget_link(place);
    }

    /// A number that no link of the group has had for long: what is said of an earlier one may still be on its way.
    fn next_number(&mut self, left: usize) -> u8 {
        let next = |n: u8| n.wrapping_add(1).max(1);
        self.numbered = next(self.numbered);
        if self.numbered == self.number(left) {
            self.numbered = next(self.numbered);
        }
        self.numbered
    }

    pub(super) fn on_add_link(&mut self, now: Time, link: usize, m: AddLink) {
        match (self.config.role, m.kind) {
            (Role::Client, AddKind::Request) => self.on_offer(link, m),
            (Role::Server, AddKind::Accept) => self.on_accepted(now, link, m),
            (Role::Server, AddKind::Reject(_)) => self.drop_offer(),
            // A client's hint, and answers to nothing.
            _ => {}
        }
    }

    fn on_offer(&mut self, link: usize, m: AddLink) {
        let fits = self.is_active(link) && self.config.max_links > 1;
        let free = self.vacant().is_some() && self.offered.is_none();
        let fresh = m.link != 0 && (0..LINKS).all(|place| self.number(place) != m.link);
        if fits && free && fresh && m.mtu_code != 0 && m.ext.is_some() {
            self.offered = Some(m);
            self.push(Event::LinkOffered(m));
        } else {
            self.reject(link, m);
        }
    }

    fn reject(&mut self, link: usize, m: AddLink) {
        let kind = AddKind::Reject(NO_ALTERNATE_PATH);
        self.send(link, Message::AddLink(AddLink { kind, ext: None, ..m }), None);
    }

    fn on_accepted(&mut self, now: Time, by: usize, m: AddLink) {
        let fits = |l: &&mut Link| l.number == m.link && m.ext.is_some();
        let Some(place) = self.offered_place().filter(|place| *place != by) else { return };
        let Some(link) = self.links[place].as_mut().filter(fits) else { return };
        link.stage = Stage::Confirming;
        link.timers.set(OfLink::Confirm, now + SECOND);
        let confirm = link.confirm(&self.config, false);
        self.learn_keys(&m, by, place);
        self.push(Event::LinkAccepted { link: place, answer: m });
        self.send(place, Message::ConfirmLink(confirm), None);
    }

    fn drop_offer(&mut self) {
        if let Some(place) = self.offered_place() {
            self.links[place] = None;
            self.push(Event::LinkGone { link: place });
        }
    }

    fn offered_place(&self) -> Option<usize> {
        (0..LINKS).find(|place| self.link(*place).is_some_and(|l| l.stage == Stage::Offered))
    }

    fn learn_keys(&mut self, m: &AddLink, by: usize, place: usize) {
        for map in m.ext.iter().flat_map(|ext| ext.rkeys.iter()) {
            let known = Name { rkey: map.known, address: None };
            let new = Name { rkey: map.new, address: Some(map.address) };
            self.peer_keys.learn(by, known, Some((place, new)));
        }
    }

    /// A second link that was not confirmed is of no use. The peer hears of it, for it may think otherwise.
    pub(super) fn give_up_second(&mut self, place: usize) {
        let Some(link) = self.links[place].take() else { return };
        self.transmit.retain(|o| o.link != place);
        self.push(Event::LinkGone { link: place });
        if let Some(by) = self.usable() {
            self.ask_to_delete(by, link.number, LinkReason::LOST_PATH);
        }
        self.note_lost();
    }

    /// A link is lost: the server tries to make another one.
    pub(super) fn note_lost(&mut self) {
        if self.config.role == Role::Server && self.has_more_links() && !self.again.lost {
            (self.again.lost, self.again.wait) = (true, AGAIN);
            self.timers.set(OfGroup::Again, self.clock + AGAIN);
        }
    }

    /// There are two links.
    pub(super) fn note_found(&mut self) {
        self.again.lost = false;
        self.timers.clear(OfGroup::Again);
    }

    /// An attempt begins.
    pub(super) fn note_attempt(&mut self) {
        self.again.tried = self.clock;
    }

    /// There is reason to try again, but a peer does not decide how often.
    pub(super) fn hasten(&mut self) {
        if self.config.role == Role::Server && self.has_more_links() && self.vacant().is_some() {
            self.again.wait = AGAIN;
            self.timers.set(OfGroup::Again, self.clock.max(self.again.tried + AGAIN));
        }
    }

    pub(super) fn again_due(&mut self) {
        if self.state != State::Active {
            return;
        }
        if self.vacant().is_some() && !self.events.is_full() {
            self.note_attempt();
            self.push(Event::SecondLinkDue);
        }
        if self.again.lost {
            self.timers.set(OfGroup::Again, self.clock + self.again.wait);
            self.again.wait = (self.again.wait + self.again.wait).min(AGAIN_MOST);
        }
    }

    /// Place of the link with this number.
    pub(super) fn place_of(&self, number: u8) -> Option<usize> {
        (0..LINKS).find(|place| number != 0 && self.number(*place) == number)
    }
}
