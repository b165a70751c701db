//! A link of two fails or is deleted: what used it goes on over the other one, and both ends are told.
//!
//! Either end may be the first to see it. The server deletes, the client asks it to (Delete Link of one link); who
//! hears of it first from the peer does the same as if it had seen it itself. The last link takes the group with it.
//! The part of [`Group`] that Linux has in `smcr_link_down` and `smc_llc_process_{srv,cli}_delete_link`.

use super::one::Stage;
use super::{Event, Group, LINKS, State};
use crate::smc::handshake::Role;
use crate::smc::llc::{DeleteLink, LinkReason, Message};

impl Group {
    /// A queue pair failed, its device is gone, or the peer has left it: nothing can be sent by this link. Without another
    /// one every connection ends.
    pub fn handle_link_down(&mut self, link: usize) {
        if self.state == State::Gone || self.is_over(link) {
            return;
        }
        if !self.is_active(link) && self.state == State::Active {
            return self.give_up_second(link);
        }
        match self.other_than(link) {
            Some(to) => {
                let number = self.number(link);
                self.move_off(link, to);
                self.ask_to_delete(to, number, LinkReason::LOST_PATH);
            }
            None => {
                self.transmit.clear();
                self.gone(Event::Terminated { by_peer: false, reason: LinkReason::LOST_PATH });
            }
        }
    }

    pub(super) fn on_delete_link(&mut self, by: usize, m: DeleteLink) {
        if m.response {
            return;
        }
        let place = self.place_of(m.link);
        let one = place.filter(|_| !m.all);
        match (self.config.role, one) {
            _ if !m.all && place.is_none() => {
                let reason = LinkReason::UNKNOWN_LINK;
                self.send(by, Message::DeleteLink(DeleteLink { response: true, reason, ..m }), None);
            }
            (role, Some(link)) if self.is_over(link) || self.other_than(link).is_some() => {
                self.delete_one(role, link, by, m);
            }
            // The client asks; the server is who deletes, and says so.
            (Role::Server, _) if self.state == State::Active => self.close(m.reason, true, true),
            (Role::Client, Some(_)) if self.state == State::Active => {
                self.state = State::Closing;
                let over = Event::Terminated { by_peer: true, reason: m.reason };
                let reason = LinkReason::NONE;
                let answer = DeleteLink { response: true, reason, ..m };
                self.send(by, Message::DeleteLink(answer), Some(over));
            }
            _ => {
                self.transmit.clear();
                self.gone(Event::Terminated { by_peer: true, reason: m.reason });
            }
        }
    }

    /// One of two links, or one that is down already.
    fn delete_one(&mut self, role: Role, link: usize, by: usize, m: DeleteLink) {
        let fresh = !self.is_over(link);
        if fresh {
            let Some(to) = self.other_than(link) else { return };
            if self.is_active(link) {
                self.move_off(link, to);
            } else {
                self.links[link] = None;
                self.push(Event::LinkGone { link });
                self.note_lost();
            }
        }
        let by = if self.is_active(by) { Some(by) } else { self.other_than(link) };
        let Some(by) = by else { return };
        match role {
            Role::Client => {
                let reason = LinkReason::NONE;
                self.send(by, Message::DeleteLink(DeleteLink { response: true, reason, ..m }), None);
            }
            Role::Server if fresh => self.ask_to_delete(by, m.link, m.reason),
            Role::Server => {}
        }
    }

    /// Server: the link is deleted. Client: please delete it.
    pub(super) fn ask_to_delete(&mut self, by: usize, number: u8, reason: LinkReason) {
        let request = DeleteLink { response: false, all: false, orderly: true, link: number, reason };
        self.send(by, Message::DeleteLink(request), None);
    }

    fn move_off(&mut self, link: usize, to: usize) {
        if let Some(l) = self.link_mut(link) {
            l.put_down();
        }
        self.transmit.retain(|o| o.link != link);
        self.push(Event::LinkDown { link, to });
        self.note_lost();
    }

    /// There is no such link, or not any more.
    pub(super) fn is_over(&self, link: usize) -> bool {
        self.link(link).is_none_or(|l| l.stage == Stage::Down)
    }

    /// Another link that carries data.
    fn other_than(&self, link: usize) -> Option<usize> {
        (0..LINKS).find(|place| *place != link && self.is_active(*place))
    }
}
