//! What the library does around the machines at each end: passes on their events and messages, and
//! decides where they ask.

use smcr_proto::smc::clc::accept::{AcceptConfirm, Endpoint};
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::client::Event as ClientEvent;
use smcr_proto::smc::handshake::server::{Choice, Event as ServerEvent};
use smcr_proto::smc::handshake::{Outcome, Params, Role};
use smcr_proto::smc::id::Rkey;
use smcr_proto::smc::link::key::{GroupKey, find};
use smcr_proto::smc::link::{Config, Event, Group, OwnKey, State, TEST_LINK};
use smcr_proto::smc::llc::{Family, RkeyMap};

use super::{CLIENT, Handshake, Pair, base};
use crate::parts;

impl Pair {
    pub(super) fn pump(&mut self, end: usize, place: usize) {
        loop {
            match &mut self.ends[end].slots[place].handshake {
                Handshake::Client(client) => match client.poll_event() {
                    Some(ClientEvent::Accepted(accept)) => self.accepted(place, &accept),
                    Some(ClientEvent::BringUpLink(params)) => self.bring_up(end, place, &params),
                    None => break,
                },
                Handshake::Server(server) => match server.poll_event() {
                    Some(ServerEvent::Proposed(proposal, choice)) => {
                        let family = match choice {
                            Choice::V1 => Family::V1,
                            Choice::V2(..) => Family::V2,
                        };
                        let reuse =
                            self.ends[end].group.as_ref().is_some_and(|(key, group)| group.state() == State::Active && key.serves(family, &proposal));
                        let (now, own) = (self.now, self.ends[end].slots[place].own);
                        let Handshake::Server(server) = &mut self.ends[end].slots[place].handshake else { unreachable!() };
                        server.accept(now, own, !reuse, true);
                    }
                    Some(ServerEvent::BringUpLink(params)) => self.bring_up(end, place, &params),
                    None => break,
                },
            }
        }
        self.flush(end, place);
    }

    fn flush(&mut self, end: usize, place: usize) {
        let (frame, outcome) = match &mut self.ends[end].slots[place].handshake {
            Handshake::Client(client) => (client.poll_transmit(), client.outcome()),
            Handshake::Server(server) => (server.poll_transmit(), server.outcome()),
        };
        if let Some(frame) = frame {
            self.ends[1 - end].slots[place].tcp.extend(frame.iter());
        }
        if self.ends[end].slots[place].outcome == outcome {
            return;
        }
        self.ends[end].slots[place].outcome = outcome;
        match outcome {
            Some(Outcome::Smc(params)) => {
                let slot = &mut self.ends[end].slots[place];
                slot.conn.activate(&params.peer).unwrap();
                slot.conn.set_libsmcr(true);
                slot.dirty = true;
                let (_, group) = self.ends[end].group.as_mut().unwrap();
                group.connection_opened().unwrap();
                group.note_peer_key(0, params.peer.rkey, params.peer.rmb_address);
                self.announce(end, place);
            }
            Some(Outcome::Fallback(fallback)) if fallback.end_group => {
                if let Some((_, group)) = &mut self.ends[end].group {
                    group.terminate(Default::default());
                }
                self.pump_group(end);
            }
            _ => {}
        }
    }

    /// A memory that came after the second link is announced by its key on each.
    fn announce(&mut self, end: usize, place: usize) {
        let own = self.ends[end].slots[place].own;
        let now = self.now;
        let Some((_, group)) = self.ends[end].group.as_mut().filter(|(_, g)| g.is_active(1)) else { return };
        group.confirm_rkey(now, [own_key(&own, 0), own_key(&own, 1)]).expect("one after the other");
        self.pump_group(end);
    }

    fn accepted(&mut self, place: usize, accept: &AcceptConfirm) {
        let known = self.ends[CLIENT].group.as_ref().map(|(key, _)| key);
        let found = if accept.first_contact() { Ok(0) } else { find(known, accept) };
        let own = self.ends[CLIENT].slots[place].own;
        let slot = &mut self.ends[CLIENT].slots[place];
        let Handshake::Client(client) = &mut slot.handshake else { unreachable!() };
        match found {
            Ok(_) => {
                slot.conn.activate(&accept.endpoint).unwrap();
                client.confirm(own, true);
            }
            Err((code, end_group)) => client.decline(code, end_group),
        }
    }

    fn bring_up(&mut self, end: usize, place: usize, params: &Params) {
        self.flush(end, place);
        self.ends[end].slots[place].conn.activate(&params.peer).unwrap();
        let limits = params.version.limits();
        let mut group = Group::new(Config {
            role: params.role,
            family: params.version.family(),
            mac: params.local.mac,
            gid: params.local.gid,
            qpn: params.local.qpn,
            direct: true,
            peer_gid: params.peer.gid,
            link: if params.role == Role::Server { 1 } else { 0 },
            link_uid: 0x100,
            max_links: limits.map_or(2, |l| l.max_links),
            max_conns: limits.map_or(255, |l| l.max_conns),
            test_link: Some(TEST_LINK),
        });
        group.start(self.now);
        self.ends[end].rts = [params.role == Role::Server, false];
        self.ends[end].group = Some((GroupKey::of(params), group));
        self.pump_group(end);
    }

    pub(super) fn pump_group(&mut self, end: usize) {
        while let Some((_, group)) = &mut self.ends[end].group {
            if let Some(event) = group.poll_event() {
                self.group_event(end, event);
            } else if let Some((link, frame)) = group.poll_transmit() {
                assert!(self.ends[end].rts[link], "sent before the queue pair was raised");
                self.send(end, link, frame.to_vec());
            } else {
                break;
            }
        }
    }

    /// This end's part of a second link, for the first time or in the place of one that has failed.
    fn second_link(&mut self, end: usize, event: Event) {
        let who = if end == CLIENT { parts::CLIENT } else { parts::SERVER };
        let (now, two) = (self.now, self.two_devices);
        let mut own = parts::second_link(who);
        let Some((_, group)) = &mut self.ends[end].group else { return };
        let place = group.vacant().expect("a place for it");
        for slot in &self.ends[end].slots {
            let (known, new) = (own_key(&slot.own, 1 - place), own_key(&slot.own, place));
            own.rkeys.push(RkeyMap { known: known.rkey, new: new.rkey, address: new.address });
        }
        let made = match event {
            Event::SecondLinkDue if two => Some(group.offer_link(now, &own)),
            Event::SecondLinkDue => {
                group.forgo_link();
                None
            }
            _ if two => Some(group.accept_link(now, &own)),
            _ => {
                group.reject_link();
                None
            }
        };
        if let Some(made) = made {
            assert_eq!(made, Ok(place));
            self.renew(end, place);
        }
    }

    fn group_event(&mut self, end: usize, event: Event) {
        match event {
            Event::RaiseToRts { link } => self.ends[end].rts[link] = true,
            Event::RkeysDeleted { .. } | Event::FlowDone { .. } => {}
            Event::SecondLinkDue | Event::LinkOffered(_) => self.second_link(end, event),
            Event::LinkAccepted { link, .. } => self.ends[end].rts[link] = true,
            Event::LinkReady { .. } => self.ends[end].second += 1,
            Event::LinkGone { link } => self.ends[end].rts[link] = false,
            Event::LinkDown { link, to } => {
                self.ends[end].down.push(link);
                for place in 0..self.ends[end].slots.len() {
                    if self.ends[end].slots[place].link == link {
                        self.move_slot(end, place, to);
                    }
                }
            }
            Event::Ready | Event::ConfirmFailed => {
                let now = self.now;
                for place in 0..self.ends[end].slots.len() {
                    let code = Diagnosis::TIMEOUT_CONFIRM_LINK;
                    match (&mut self.ends[end].slots[place].handshake, event == Event::Ready) {
                        (Handshake::Client(client), true) => client.link_ready(),
                        (Handshake::Server(server), true) => server.link_ready(),
                        (Handshake::Client(client), false) => client.link_failed(now, code),
                        (Handshake::Server(server), false) => server.link_failed(now, code),
                    }
                    self.flush(end, place);
                }
                if event == Event::ConfirmFailed {
                    self.ends[end].group = None;
                }
            }
            Event::Terminated { .. } => {
                self.ends[end].terminated.push(event);
                self.ends[end].group = None;
                for place in 0..self.ends[end].slots.len() {
                    match self.way_back {
                        true => self.go_back(end, place),
                        false => self.ends[end].slots[place].conn.handle_link_down(),
                    }
                }
            }
        }
    }
}

/// What the memory of an end is called on a link.
fn own_key(own: &Endpoint, link: usize) -> OwnKey {
    OwnKey { rkey: Rkey(own.rkey.0 | (link as u32) << 31), address: own.rmb_address + base(link) }
}
