//! What a link group does with each LLC message: the part of [`super::Group`] that faces the peer.

use super::timers::Timer;
use super::{Event, Flow, Group, State};
use crate::smc::handshake::Role;
use crate::smc::list::List;
use crate::smc::llc::{
    AddKind, AddLink, ConfirmLink, ConfirmRkey, DeleteLink, DeleteRkey, Family, LinkReason,
    Message, RequestAddLink, TestLink,
};

/// Reason of a rejected Add Link in version 1: no alternate path.
const NO_ALTERNATE_PATH: u8 = 1;

impl Group {
    pub(super) fn answer(&mut self, message: Message) {
        if matches!(self.state, State::New | State::Closing | State::Gone) {
            return;
        }
        match message {
            Message::ConfirmLink(m) => self.on_confirm_link(m),
            Message::AddLink(m) => self.on_add_link(m),
            Message::DeleteLink(m) => self.on_delete_link(m),
            Message::ConfirmRkey(m) => self.on_confirm_rkey(m),
            Message::DeleteRkey(m) => self.on_delete_rkey(m),
            Message::TestLink(m) if !m.response => {
                self.send(
                    Message::TestLink(TestLink {
                        response: true,
                        ..m
                    }),
                    None,
                );
            }
            Message::RequestAddLink(m) if !m.response => {
                let answer = RequestAddLink {
                    response: true,
                    gids: List::new(),
                };
                self.send(Message::RequestAddLink(answer), None);
            }
            // The answers to these have done their work by arriving; keys of a second link are never
            // asked for.
            Message::TestLink(_) | Message::RequestAddLink(_) | Message::AddLinkCont(_) => {}
        }
    }

    fn on_confirm_link(&mut self, m: ConfirmLink) {
        // An eyecatcher in the ring is something this library does not write.
        let fits = self.state == State::Confirming && m.no_eyecatcher && m.link != 0;
        match (self.config.role, m.response) {
            (Role::Client, false) if fits => {
                self.config.link = m.link;
                self.push(Event::RaiseToRts);
                // Usable as soon as the answer is on its way.
                self.send(
                    Message::ConfirmLink(self.config.confirm_link(true)),
                    Some(Event::Ready),
                );
                self.active();
            }
            (Role::Server, true) if fits && m.link == self.config.link => {
                self.active();
                self.push(Event::Ready);
                if self.config.max_links > 1 {
                    self.send(Message::AddLink(self.config.void_add_link()), None);
                }
            }
            _ => {}
        }
    }

    /// There is one link and there will be no other. A client rejects; a server ignores the hint of
    /// a client, and the rejection of its own request.
    fn on_add_link(&mut self, m: AddLink) {
        if self.config.role == Role::Client && m.kind == AddKind::Request {
            let kind = AddKind::Reject(NO_ALTERNATE_PATH);
            self.send(
                Message::AddLink(AddLink {
                    kind,
                    ext: None,
                    ..m
                }),
                None,
            );
        }
    }

    fn on_delete_link(&mut self, m: DeleteLink) {
        if m.response {
            return;
        }
        let known = m.all || m.link == self.config.link;
        match self.config.role {
            _ if !known => {
                let reason = LinkReason::UNKNOWN_LINK;
                self.send(
                    Message::DeleteLink(DeleteLink {
                        response: true,
                        reason,
                        ..m
                    }),
                    None,
                );
            }
            // The client asks; the server is who deletes, and says so.
            Role::Server if self.state == State::Active => self.close(m.reason, true, true),
            Role::Client if !m.all && self.state == State::Active => {
                self.state = State::Closing;
                let reason = LinkReason::NONE;
                let answer = DeleteLink {
                    response: true,
                    reason,
                    ..m
                };
                let over = Event::Terminated {
                    by_peer: true,
                    reason: m.reason,
                };
                self.send(Message::DeleteLink(answer), Some(over));
            }
            Role::Client | Role::Server => {
                self.transmit.clear();
                self.gone(Event::Terminated {
                    by_peer: true,
                    reason: m.reason,
                });
            }
        }
    }

    /// Nothing has to be kept: on one link the CLC messages name key and address again.
    fn on_confirm_rkey(&mut self, m: ConfirmRkey) {
        if !m.response {
            self.send(
                Message::ConfirmRkey(ConfirmRkey {
                    response: true,
                    ..m
                }),
                None,
            );
        } else if self.flow == Some(Flow::ConfirmRkey(m.rkey)) {
            self.finish_flow(!m.negative);
        }
    }

    fn on_delete_rkey(&mut self, m: DeleteRkey) {
        if m.response {
            if self.flow == Some(Flow::DeleteRkeys) {
                self.finish_flow(!m.negative);
            }
            return;
        }
        let mut answer = DeleteRkey {
            response: true,
            ..m
        };
        if m.more > 0 {
            // More keys than are taken at once: none of them is, and the peer is told so.
            answer.negative = true;
            answer.errors = (m.keys.len() as u8).saturating_add(m.more);
        } else if !m.keys.is_empty() {
            self.push(Event::RkeysDeleted(m.keys));
        }
        if self.config.family == Family::V2 {
            // As Linux answers: the number stays, the keys do not.
            answer.keys.fill(Default::default());
        }
        self.send(Message::DeleteRkey(answer), None);
    }

    fn finish_flow(&mut self, agreed: bool) {
        self.flow = None;
        self.timers.clear(Timer::Flow);
        self.push(Event::FlowDone { agreed });
    }
}
