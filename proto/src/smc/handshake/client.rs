//! The client half: Proposal, wait for Accept, ask the driver, Confirm, wait for the link.
//!
//! Driven by the engine after a connect() whose SYN-ACK carried the SMC option. While it waits, the
//! driver goes on serving LLC: a server that reuses a link group sends Confirm Rkey before Accept.

use super::wire::Wire;
use super::{ACCEPT_TIMEOUT, DECLINE_TIMEOUT_CLIENT, Failure, Host, Outcome, Params, Role, params};
use crate::smc::Time;
use crate::smc::clc::accept::{AcceptConfirm, Endpoint, FirstContact, Form};
use crate::smc::clc::proposal::{Proposal, Release};
use crate::smc::clc::{Frame, Message};
use crate::smc::diagnosis::Diagnosis;
use crate::smc::id::PeerId;
use crate::smc::list::List;

/// A client's handshake.
#[derive(Debug)]
pub struct Client {
    wire: Wire,
    proposal: Option<Proposal>,
    host: Host,
    state: State,
    event: Option<Event>,
    /// A Decline that has to wait until the Accept that is on its way has been taken.
    refusal: Option<Diagnosis>,
}

/// What a client's driver has to do.
// One at a time; there is no allocator to box it with.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The server accepted. First contact: bring a queue pair to RTR; else find the link group (see
    /// [`crate::smc::link::key::find`]). Then [`Client::confirm`] or [`Client::decline`].
    Accepted(AcceptConfirm),
    /// First contact: Confirm is ready to be sent; start the link group's machine, which waits for
    /// Confirm Link. Then [`Client::link_ready`] or [`Client::link_failed`].
    BringUpLink(Params),
}

// The values are moved once each.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum State {
    /// Proposal sent.
    AwaitAccept,
    /// The driver decides on this Accept.
    Deciding(AcceptConfirm),
    /// Confirm sent; the link is being confirmed.
    AwaitLink(Params),
    /// The link did not come up.
    AwaitDecline(Diagnosis),
    /// See the outcome.
    Over,
}

impl Client {
    /// Begins with this Proposal, which offers one version at least.
    pub fn new(now: Time, proposal: Proposal, host: Host) -> Client {
        let mut wire = Wire::new(proposal.peer_id);
        wire.deadline = Some(now + ACCEPT_TIMEOUT);
        wire.send(&Message::Proposal(proposal.clone()));
        let state = State::AwaitAccept;
        Client { wire, proposal: Some(proposal), host, state, event: None, refusal: None }
    }

    /// Declines at once: the SMC option was agreed, but nothing can be offered. The peer does the
    /// same with a Proposal that never came.
    pub fn refusing(peer_id: PeerId, code: Diagnosis, host: Host) -> Client {
        let mut wire = Wire::new(peer_id);
        wire.decline(code, false);
        Client { wire, proposal: None, host, state: State::Over, event: None, refusal: None }
    }

    /// Goes on where another process has sent a Proposal and waits for Accept until then: to decline what comes.
    pub fn proposed(until: Time, peer_id: PeerId, code: Diagnosis, host: Host) -> Client {
        let mut wire = Wire::new(peer_id);
        wire.deadline = Some(until);
        Client { wire, proposal: None, host, state: State::AwaitAccept, event: None, refusal: Some(code) }
    }

    /// Until when Accept is awaited, if its first byte is: another process may go on from here.
    pub fn awaits_accept(&self) -> Option<Time> {
        let waits = matches!(self.state, State::AwaitAccept) && !self.wire.is_over() && !self.wire.is_inside();
        self.wire.deadline.filter(|_| waits)
    }

    /// Bytes that may be read from TCP now; reading more could take what is the program's.
    pub fn want(&self) -> usize {
        if matches!(self.state, State::Deciding(_) | State::Over) { 0 } else { self.wire.want() }
    }

    /// Takes bytes of the stream; returns how many.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> usize {
        if self.want() == 0 {
            return 0;
        }
        let (taken, message) = self.wire.handle_bytes(bytes);
        match (message, &self.state) {
            (Some(Message::Accept(accept)), State::AwaitAccept) => self.accepted(accept),
            (Some(_), _) => self.wire.fail(Failure::Unexpected),
            (None, _) => {}
        }
        taken
    }

    /// The TCP connection ended.
    pub fn handle_eof(&mut self) {
        if !self.wire.is_over() {
            self.wire.fail(Failure::Closed);
        }
    }

    /// Lets time pass; to be called when [`Client::poll_timeout`] is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.wire.is_over() || !self.wire.is_due(now) {
            return;
        }
        match self.state {
            // The peer may believe anything about the stream: Linux fails too.
            State::AwaitAccept => self.wire.fail(Failure::Timeout),
            State::AwaitDecline(code) => self.wire.decline(code, false),
            State::Deciding(_) | State::AwaitLink(_) | State::Over => {}
        }
    }

    /// Sends Confirm with this end's ring. `direct` (version 2, first contact): no gateway lies
    /// between the ends. Without effect unless an Accept waits for the decision.
    pub fn confirm(&mut self, mut local: Endpoint, direct: bool) {
        let State::Deciding(accept) = self.state else {
            return;
        };
        if self.wire.is_over() {
            return;
        }
        local.mtu = local.mtu.min(accept.endpoint.mtu);
        let offered = self.offered();
        let form = match accept.form {
            Form::V1 { first_contact } => Form::V1 { first_contact },
            Form::V2 { eid, first_contact } => Form::V2 {
                eid,
                first_contact: first_contact.map(|theirs| FirstContact {
                    direct,
                    os: self.host.os,
                    release: theirs.release.with_features_of(offered),
                    hostname: self.host.name,
                    gids: List::of(&[local.gid]),
                }),
            },
        };
        self.wire.send(&Message::Confirm(AcceptConfirm { endpoint: local, form }));
        let params = params(Role::Client, local, accept.endpoint, &accept, offered);
        if params.first_contact {
            self.state = State::AwaitLink(params);
            self.event = Some(Event::BringUpLink(params));
        } else {
            self.over(Outcome::Smc(params));
        }
    }

    /// Refuses. While an Accept is on its way the Decline waits for it, because the bytes of the
    /// Accept must not be left in the stream. With `end_group` the server ends the link group.
    pub fn decline(&mut self, code: Diagnosis, end_group: bool) {
        match self.state {
            State::AwaitAccept => self.refusal = Some(code),
            State::Deciding(_) if !self.wire.is_over() => {
                self.wire.decline(code, end_group);
                self.state = State::Over;
            }
            _ => {}
        }
    }

    /// The link is confirmed.
    pub fn link_ready(&mut self) {
        let State::AwaitLink(params) = self.state else {
            return;
        };
        if self.wire.is_inside() {
            self.wire.fail(Failure::Unexpected);
        }
        self.over(Outcome::Smc(params));
    }

    /// The link did not come up: [`Diagnosis::TIMEOUT_CONFIRM_LINK`] or what went wrong.
    pub fn link_failed(&mut self, now: Time, code: Diagnosis) {
        if matches!(self.state, State::AwaitLink(_)) && !self.wire.is_over() {
            self.state = State::AwaitDecline(code);
            self.wire.await_decline(now + DECLINE_TIMEOUT_CLIENT);
        }
    }

    /// The next thing to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// The next message to put into the stream.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.wire.poll_transmit()
    }

    /// When to call [`Client::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.wire.deadline
    }

    /// The end, once nothing is left to be sent.
    pub fn outcome(&self) -> Option<Outcome> {
        self.wire.outcome()
    }

    fn accepted(&mut self, accept: AcceptConfirm) {
        self.wire.deadline = None;
        let verdict = match self.refusal {
            Some(code) => Err(code),
            None => self.check(&accept),
        };
        match verdict {
            Ok(()) => {
                self.state = State::Deciding(accept);
                self.event = Some(Event::Accepted(accept));
            }
            Err(code) => {
                self.wire.decline(code, false);
                self.state = State::Over;
            }
        }
    }

    /// The release of the offer; the one that names no features where it has none.
    fn offered(&self) -> Release {
        let offer = self.proposal.as_ref().and_then(|p| p.v2);
        offer.map_or(Release::V20, |offer| offer.release)
    }

    /// Whether the server chose from what was offered. What features it names beyond that are not agreed on (`params`).
    fn check(&self, accept: &AcceptConfirm) -> Result<(), Diagnosis> {
        let offered = self.proposal.as_ref();
        match accept.form {
            Form::V1 { .. } => offered.and_then(|p| p.v1).map(|_| ()).ok_or(Diagnosis::MODE_MISMATCH),
            Form::V2 { eid, first_contact } => {
                let offer = offered.and_then(|p| p.v2).ok_or(Diagnosis::MODE_MISMATCH)?;
                if !offer.eids.contains(&eid) {
                    return Err(Diagnosis::NO_UEID);
                }
                match first_contact {
                    Some(first) => check_release(offer.release, first.release),
                    None => Ok(()),
                }
            }
        }
    }

    fn over(&mut self, outcome: Outcome) {
        self.wire.finish(outcome);
        self.state = State::Over;
    }
}

fn check_release(offered: Release, chosen: Release) -> Result<(), Diagnosis> {
    match (offered, chosen) {
        (_, Release::V20) => Ok(()),
        (Release::V20, Release::V21(_)) => Err(Diagnosis::RELEASE),
        (Release::V21(ours), Release::V21(theirs)) => {
            if !(16..=ours.max_conns).contains(&theirs.max_conns) {
                Err(Diagnosis::MAX_CONNECTIONS)
            } else if !(1..=ours.max_links).contains(&theirs.max_links) {
                Err(Diagnosis::MAX_LINKS)
            } else {
                Ok(())
            }
        }
    }
}
