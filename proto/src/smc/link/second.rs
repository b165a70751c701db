//! The second link of a group: offered by the server, accepted by the client, confirmed by both.
//!
//! The server begins as soon as the first link is confirmed. The keys of the memories that there are go with the
//! messages (version 2); those of later ones are announced by Confirm Rkey. A link that does not come up leaves the
//! group as it was. The part of [`Group`] that Linux has in `smc_llc_srv_add_link` and `smc_llc_cli_add_link`.

use super::one::{Link, NewLink, Stage};
use super::peer_keys::Name;
use super::timers::{OfLink, SECOND};
use super::{Event, Group, GroupError, LINKS, State};
use crate::smc::Time;
use crate::smc::handshake::Role;
use crate::smc::llc::{AddKind, AddLink, Family, LinkReason, Message};

/// Reason of a rejected Add Link in version 1: no alternate path.
const NO_ALTERNATE_PATH: u8 = 1;

/// Place of the second link.
pub(super) const SECOND_PLACE: usize = 1;

impl Group {
    /// Server, after [`Event::SecondLinkDue`]: offers this end of a second link to the client.
    pub fn offer_link(&mut self, now: Time, own: &NewLink) -> Result<(), GroupError> {
        let free = self.is_active(0) && self.links[SECOND_PLACE].is_none();
        if !free || self.config.role != Role::Server || self.config.family != Family::V2 {
            return Err(GroupError::Unavailable);
        }
        if self.transmit.is_full() {
            return Err(GroupError::Backlog);
        }
        let number = self.number(0).wrapping_add(1).max(1);
        let mut link = Link::second(&self.config, number, Stage::Offered, own, now);
        link.timers.set(OfLink::Confirm, now + SECOND);
        self.links[SECOND_PLACE] = Some(link);
        self.send(0, Message::AddLink(own.message(AddKind::Request, number, &self.config)), None);
        Ok(())
    }

    /// Server, after [`Event::SecondLinkDue`], where there is no second device and the client is Linux: it waits for a
    /// request, and gets one that it rejects at once.
    pub fn forgo_link(&mut self) {
        if self.is_active(0) {
            self.send(0, Message::AddLink(self.config.void_add_link()), None);
        }
    }

    /// Client, after [`Event::LinkOffered`]: this end of the second link, whose queue pair is in RTR.
    pub fn accept_link(&mut self, now: Time, own: &NewLink) -> Result<(), GroupError> {
        let Some(offer) = self.offered.filter(|_| self.is_active(0)) else {
            return Err(GroupError::Unavailable);
        };
        if self.transmit.is_full() {
            return Err(GroupError::Backlog);
        }
        self.offered = None;
        let mut link = Link::second(&self.config, offer.link, Stage::Confirming, own, now);
        link.timers.set(OfLink::Confirm, now + SECOND);
        self.links[SECOND_PLACE] = Some(link);
        self.learn_keys(&offer);
        self.send(0, Message::AddLink(own.message(AddKind::Accept, offer.link, &self.config)), None);
        Ok(())
    }

    /// Client, after [`Event::LinkOffered`]: there is no device to match.
    pub fn reject_link(&mut self) {
        if let Some(offer) = self.offered.take() {
            self.reject(0, offer);
        }
    }

    pub(super) fn on_add_link(&mut self, now: Time, link: usize, m: AddLink) {
        match (self.config.role, m.kind) {
            (Role::Client, AddKind::Request) => self.on_offer(link, m),
            (Role::Server, AddKind::Accept) => self.on_accepted(now, m),
            (Role::Server, AddKind::Reject(_)) => self.drop_offer(),
            // A client's hint, and answers to nothing.
            _ => {}
        }
    }

    fn on_offer(&mut self, link: usize, m: AddLink) {
        let fits = link == 0 && self.is_active(0) && self.config.max_links > 1;
        let free = self.links[SECOND_PLACE].is_none() && self.offered.is_none();
        let good = m.mtu_code != 0 && m.ext.is_some() && m.link != 0 && m.link != self.number(0);
        if fits && free && good {
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

    fn on_accepted(&mut self, now: Time, m: AddLink) {
        let confirm = match self.links[SECOND_PLACE].as_mut() {
            Some(l) if l.stage == Stage::Offered && l.number == m.link && m.ext.is_some() => {
                l.stage = Stage::Confirming;
                l.timers.set(OfLink::Confirm, now + SECOND);
                l.confirm(&self.config, false)
            }
            _ => return,
        };
        self.learn_keys(&m);
        self.push(Event::LinkAccepted(m));
        self.send(SECOND_PLACE, Message::ConfirmLink(confirm), None);
    }

    fn drop_offer(&mut self) {
        if self.links[SECOND_PLACE].as_ref().is_some_and(|l| l.stage == Stage::Offered) {
            self.links[SECOND_PLACE] = None;
            self.push(Event::LinkGone { link: SECOND_PLACE });
        }
    }

    fn learn_keys(&mut self, m: &AddLink) {
        for map in m.ext.iter().flat_map(|ext| ext.rkeys.iter()) {
            let known = Name { rkey: map.known, address: None };
            let new = Name { rkey: map.new, address: Some(map.address) };
            self.peer_keys.learn(0, known, Some((SECOND_PLACE, new)));
        }
    }

    /// A second link that was not confirmed is of no use. The peer hears of it, for it may think otherwise.
    pub(super) fn give_up_second(&mut self) {
        if let Some(link) = self.links[SECOND_PLACE].take() {
            self.transmit.retain(|o| o.link != SECOND_PLACE);
            self.push(Event::LinkGone { link: SECOND_PLACE });
            if self.state == State::Active && self.is_active(0) {
                self.ask_to_delete(0, link.number, LinkReason::LOST_PATH);
            }
        }
    }

    /// Place of the link with this number.
    pub(super) fn place_of(&self, number: u8) -> Option<usize> {
        (0..LINKS).find(|place| number != 0 && self.number(*place) == number)
    }
}
