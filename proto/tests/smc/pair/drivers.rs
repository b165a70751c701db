//! What the library does around the machines at each end: passes on their events and messages, and
//! decides where they ask.

use smcr_proto::smc::clc::accept::AcceptConfirm;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::client::Event as ClientEvent;
use smcr_proto::smc::handshake::server::{Choice, Event as ServerEvent};
use smcr_proto::smc::handshake::{Outcome, Params, Role};
use smcr_proto::smc::link::key::{GroupKey, find};
use smcr_proto::smc::link::{Config, Event, Group, State, TEST_LINK};
use smcr_proto::smc::llc::Family;

use super::{CLIENT, Handshake, Pair};

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
                        let reuse = self.ends[end].group.as_ref().is_some_and(|(key, group)| {
                            group.state() == State::Active && key.serves(family, &proposal)
                        });
                        let (now, own) = (self.now, self.ends[end].slots[place].own);
                        let Handshake::Server(server) = &mut self.ends[end].slots[place].handshake
                        else {
                            unreachable!()
                        };
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
                slot.dirty = true;
                let (_, group) = self.ends[end].group.as_mut().unwrap();
                group.connection_opened().unwrap();
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

    fn accepted(&mut self, place: usize, accept: &AcceptConfirm) {
        let known = self.ends[CLIENT].group.as_ref().map(|(key, _)| key);
        let found = if accept.first_contact() {
            Ok(0)
        } else {
            find(known, accept)
        };
        let own = self.ends[CLIENT].slots[place].own;
        let slot = &mut self.ends[CLIENT].slots[place];
        let Handshake::Client(client) = &mut slot.handshake else {
            unreachable!()
        };
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
        self.ends[end].slots[place]
            .conn
            .activate(&params.peer)
            .unwrap();
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
        self.ends[end].rts = params.role == Role::Server;
        self.ends[end].group = Some((GroupKey::of(params), group));
        self.pump_group(end);
    }

    pub(super) fn pump_group(&mut self, end: usize) {
        while let Some((_, group)) = &mut self.ends[end].group {
            if let Some(event) = group.poll_event() {
                self.group_event(end, event);
            } else if let Some(frame) = group.poll_transmit() {
                assert!(self.ends[end].rts, "sent before the queue pair was raised");
                self.send(end, frame.to_vec());
            } else {
                break;
            }
        }
    }

    fn group_event(&mut self, end: usize, event: Event) {
        match event {
            Event::RaiseToRts => self.ends[end].rts = true,
            Event::RkeysDeleted(_) | Event::FlowDone { .. } => {}
            Event::Ready | Event::ConfirmFailed => {
                let now = self.now;
                for place in 0..self.ends[end].slots.len() {
                    let code = Diagnosis::TIMEOUT_CONFIRM_LINK;
                    match (
                        &mut self.ends[end].slots[place].handshake,
                        event == Event::Ready,
                    ) {
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
                for slot in &mut self.ends[end].slots {
                    slot.conn.handle_link_down();
                }
            }
        }
    }
}
