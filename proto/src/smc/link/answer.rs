//! What a link group does with each LLC message: the part of [`super::Group`] that faces the peer.

use super::one::{Link, Stage};
use super::peer_keys::Name;
use super::timers::OfGroup;
use super::{Event, Flow, Group, LINKS, State};
use crate::smc::Time;
use crate::smc::handshake::Role;
use crate::smc::list::List;
use crate::smc::llc::{ConfirmLink, ConfirmRkey, DeleteRkey, Family, Message, RequestAddLink, TestLink};

impl Group {
    pub(super) fn answer(&mut self, now: Time, by: usize, message: Message) {
        if matches!(self.state, State::New | State::Closing | State::Gone) {
            return;
        }
        match message {
            Message::ConfirmLink(m) if self.state == State::Confirming => self.on_first_confirmed(m),
            Message::ConfirmLink(m) => self.on_second_confirmed(by, m),
            Message::AddLink(m) => self.on_add_link(now, by, m),
            Message::DeleteLink(m) => self.on_delete_link(by, m),
            Message::ConfirmRkey(m) => self.on_confirm_rkey(by, m),
            Message::DeleteRkey(m) => self.on_delete_rkey(by, m),
            Message::TestLink(m) if !m.response => {
                self.send(by, Message::TestLink(TestLink { response: true, ..m }), None);
            }
            Message::RequestAddLink(m) if !m.response => {
                let answer = RequestAddLink { response: true, gids: List::new() };
                self.send(by, Message::RequestAddLink(answer), None);
                self.hasten();
            }
            // The answers to these have done their work by arriving; keys of a second link come with Add Link.
            Message::TestLink(_) | Message::RequestAddLink(_) | Message::AddLinkCont(_) => {}
        }
    }

    fn on_first_confirmed(&mut self, m: ConfirmLink) {
        // An eyecatcher in the ring is something this library does not write.
        let fits = self.state == State::Confirming && m.no_eyecatcher && m.link != 0;
        let test = self.config.test_link;
        let Some(link) = self.links[0].as_mut().filter(|_| fits) else { return };
        match (self.config.role, m.response) {
            (Role::Client, false) => {
                link.number = m.link;
                let answer = link.confirm(&self.config, true);
                link.activate(test);
                self.state = State::Active;
                self.push(Event::RaiseToRts { link: 0 });
                // Usable as soon as the answer is on its way.
                self.send(0, Message::ConfirmLink(answer), Some(Event::Ready));
            }
            (Role::Server, true) if m.link == link.number => {
                link.activate(test);
                self.state = State::Active;
                self.push(Event::Ready);
                if self.config.max_links > 1 {
                    self.note_attempt();
                    self.push(Event::SecondLinkDue);
                }
            }
            _ => {}
        }
    }

    fn on_second_confirmed(&mut self, place: usize, m: ConfirmLink) {
        let test = self.config.test_link;
        let fits = |l: &&mut Link| l.stage == Stage::Confirming && l.number == m.link && m.no_eyecatcher;
        let Some(link) = self.links[place].as_mut().filter(fits) else { return };
        match (self.config.role, m.response) {
            (Role::Client, false) => {
                let answer = link.confirm(&self.config, true);
                link.activate(test);
                self.push(Event::RaiseToRts { link: place });
                self.send(place, Message::ConfirmLink(answer), Some(Event::LinkReady { link: place }));
            }
            (Role::Server, true) => {
                link.activate(test);
                self.push(Event::LinkReady { link: place });
                self.note_found();
            }
            _ => {}
        }
    }

    /// On one link nothing has to be kept: the CLC messages name key and address again.
    fn on_confirm_rkey(&mut self, by: usize, m: ConfirmRkey) {
        if !m.response {
            let mut fits = true;
            for other in m.others.iter() {
                if let Some(place) = self.place_of(other.link) {
                    let name = Name { rkey: m.rkey, address: Some(m.address) };
                    let there = Name { rkey: other.rkey, address: Some(other.address) };
                    fits &= self.peer_keys.learn(by, name, Some((place, there)));
                }
            }
            let answer = ConfirmRkey { response: true, negative: !fits, ..m };
            self.send(by, Message::ConfirmRkey(answer), None);
        } else if self.flow == Some(Flow::ConfirmRkey(m.rkey)) {
            self.finish_flow(!m.negative);
        }
    }

    fn on_delete_rkey(&mut self, by: usize, m: DeleteRkey) {
        if m.response {
            if self.flow == Some(Flow::DeleteRkeys) {
                self.finish_flow(!m.negative);
            }
            return;
        }
        let mut answer = DeleteRkey { response: true, ..m };
        if m.more > 0 {
            // More keys than are taken at once: none of them is, and the peer is told so.
            answer.negative = true;
            answer.errors = (m.keys.len() as u8).saturating_add(m.more);
        } else if !m.keys.is_empty() {
            self.push(Event::RkeysDeleted { link: by, keys: m.keys });
            let other = (LINKS - 1) - by.min(LINKS - 1);
            let mut there = List::new();
            for key in m.keys.iter().filter_map(|key| self.peer_keys.forget(by, *key, other)) {
                there.push(key);
            }
            if !there.is_empty() {
                self.push(Event::RkeysDeleted { link: other, keys: there });
            }
        }
        if self.config.family == Family::V2 {
            // As Linux answers: the number stays, the keys do not.
            answer.keys.fill(Default::default());
        }
        self.send(by, Message::DeleteRkey(answer), None);
    }

    fn finish_flow(&mut self, agreed: bool) {
        self.flow = None;
        self.timers.clear(OfGroup::Flow);
        self.push(Event::FlowDone { agreed });
    }
}
