//! The server half: wait for Proposal, choose a version, ask the driver, Accept, wait for Confirm
//! and for the link.
//!
//! Driven by the engine after an accept() whose SYN carried the SMC option and whose SYN-ACK
//! answered it.

use super::wire::Wire;
use super::{CONFIRM_TIMEOUT, DECLINE_TIMEOUT_SERVER, Failure, Host, MESSAGE_TIMEOUT, Outcome, Params, Role, params};
use crate::smc::Time;
use crate::smc::clc::accept::{AcceptConfirm, Endpoint, FirstContact, Form};
use crate::smc::clc::proposal::{Limits, MAX_ENTRIES, OfferV2, Prefixes, Proposal, Release};
use crate::smc::clc::{Frame, Message};
use crate::smc::diagnosis::Diagnosis;
use crate::smc::id::{Eid, PeerId};
use crate::smc::list::List;

/// What a server can do for one connection.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// SMC-Rv1: the subnets of the interface that the connection came in by.
    pub v1: Option<Prefixes>,
    /// SMC-Rv2: the user EIDs of this host, and the limits for release 2.1.
    pub v2: Option<(List<Eid, MAX_ENTRIES>, Limits)>,
}

/// A server's handshake.
#[derive(Debug)]
pub struct Server {
    wire: Wire,
    /// What can be done, or why nothing can.
    offer: Result<Offer, Diagnosis>,
    host: Host,
    state: State,
    event: Option<Event>,
}

/// What a server's driver has to do.
// One at a time; there is no allocator to box it with.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A client proposed, and this version was chosen. Find a link group that serves it (see
    /// [`crate::smc::link::key::GroupKey::serves`]) or make one, with a ring and a token; in a
    /// reused group answer LLC on. Then [`Server::accept`] or [`Server::decline`].
    Proposed(Proposal, Choice),
    /// First contact: bring the queue pair to RTS and start the link group's machine, which sends
    /// Confirm Link. Then [`Server::link_ready`] or [`Server::link_failed`].
    BringUpLink(Params),
}

/// What the server chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// SMC-Rv1.
    V1,
    /// SMC-Rv2 with this EID and, on first contact, this release.
    V2(Eid, Release),
}

// The values are moved once each.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
enum State {
    AwaitProposal,
    /// The driver decides.
    Deciding(Proposal, Choice),
    /// This Accept was sent. Confirm is awaited until then; whether some of it had come when that was looked at last.
    AwaitConfirm(Proposal, AcceptConfirm, Time, bool),
    /// Confirm came; the link is being confirmed.
    AwaitLink(Params),
    /// The link did not come up.
    AwaitDecline(Diagnosis),
    /// See the outcome.
    Over,
}

impl Server {
    /// Waits for a Proposal. If `offer` is an error, the Proposal is read and declined with it.
    pub fn new(now: Time, peer_id: PeerId, offer: Result<Offer, Diagnosis>, host: Host) -> Server {
        let mut wire = Wire::new(peer_id);
        wire.deadline = Some(now + MESSAGE_TIMEOUT);
        Server { wire, offer, host, state: State::AwaitProposal, event: None }
    }

    /// Goes on where another process waits for a Proposal until then: to decline it.
    pub fn greeted(until: Time, peer_id: PeerId, code: Diagnosis, host: Host) -> Server {
        let mut server = Server::new(until, peer_id, Err(code), host);
        server.wire.deadline = Some(until);
        server
    }

    /// Until when a Proposal is awaited, if its first byte is: another process may go on from here.
    pub fn awaits_proposal(&self) -> Option<Time> {
        let waits = matches!(self.state, State::AwaitProposal) && !self.wire.is_over() && !self.wire.is_inside();
        self.wire.deadline.filter(|_| waits)
    }

    /// Bytes that may be read from TCP now; reading more could take what is the program's.
    pub fn want(&self) -> usize {
        if matches!(self.state, State::Deciding(..) | State::Over) { 0 } else { self.wire.want() }
    }

    /// Takes bytes of the stream; returns how many.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> usize {
        if self.want() == 0 {
            return 0;
        }
        let (taken, message) = self.wire.handle_bytes(bytes);
        match (message, &self.state) {
            (Some(Message::Proposal(p)), State::AwaitProposal) => self.proposed(p),
            (Some(Message::Confirm(c)), State::AwaitConfirm(..)) => self.confirmed(c),
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

    /// Lets time pass; to be called when [`Server::poll_timeout`] is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.wire.is_over() || !self.wire.is_due(now) {
            return;
        }
        match &mut self.state {
            // One that has begun has to be there soon.
            State::AwaitConfirm(_, _, until, began) if now < *until && !*began => {
                *began = self.wire.is_inside();
                self.wire.deadline = Some((now + MESSAGE_TIMEOUT).min(*until));
            }
            State::AwaitProposal | State::AwaitConfirm(..) => self.wire.fail(Failure::Timeout),
            State::AwaitDecline(code) => self.wire.decline(*code, false),
            State::Deciding(..) | State::AwaitLink(_) | State::Over => {}
        }
    }

    /// Sends Accept with this end's ring. `direct` as in Confirm. Without effect unless a Proposal
    /// waits for the decision.
    pub fn accept(&mut self, now: Time, local: Endpoint, first_contact: bool, direct: bool) {
        let (proposal, choice) = match core::mem::replace(&mut self.state, State::Over) {
            State::Deciding(proposal, choice) if !self.wire.is_over() => (proposal, choice),
            other => {
                self.state = other;
                return;
            }
        };
        let form = match choice {
            Choice::V1 => Form::V1 { first_contact },
            Choice::V2(eid, release) => {
                let Host { os, name: hostname } = self.host;
                let first = FirstContact { direct, os, release, hostname, gids: List::new() };
                Form::V2 { eid, first_contact: first_contact.then_some(first) }
            }
        };
        let accept = AcceptConfirm { endpoint: local, form };
        self.wire.send(&Message::Accept(accept));
        self.wire.deadline = Some(now + MESSAGE_TIMEOUT);
        self.state = State::AwaitConfirm(proposal, accept, now + CONFIRM_TIMEOUT, false);
    }

    /// Refuses the Proposal that waits for the decision.
    pub fn decline(&mut self, code: Diagnosis) {
        if matches!(self.state, State::Deciding(..)) && !self.wire.is_over() {
            self.wire.decline(code, false);
            self.state = State::Over;
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
            self.wire.await_decline(now + DECLINE_TIMEOUT_SERVER);
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

    /// When to call [`Server::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.wire.deadline
    }

    /// The end, once nothing is left to be sent.
    pub fn outcome(&self) -> Option<Outcome> {
        self.wire.outcome()
    }

    fn proposed(&mut self, proposal: Proposal) {
        self.wire.deadline = None;
        match self.offer.and_then(|offer| choose(&offer, &proposal)) {
            Ok(choice) => {
                self.event = Some(Event::Proposed(proposal.clone(), choice));
                self.state = State::Deciding(proposal, choice);
            }
            Err(code) => {
                self.wire.decline(code, false);
                self.state = State::Over;
            }
        }
    }

    fn confirmed(&mut self, confirm: AcceptConfirm) {
        let State::AwaitConfirm(proposal, accept, ..) = &self.state else {
            return;
        };
        if let Err((code, end_group)) = check_confirm(accept, &confirm) {
            self.wire.decline(code, end_group);
            self.state = State::Over;
            return;
        }
        // Linux takes GID, MAC and peer ID from the Proposal; a Linux client that offers version 2
        // only leaves the last two zero there.
        let mut peer = confirm.endpoint;
        match (confirm.form, proposal.v2) {
            (Form::V2 { .. }, Some(offer)) => peer.gid = offer.gid,
            _ => peer.gid = proposal.gid,
        }
        if proposal.peer_id != PeerId::default() {
            (peer.peer_id, peer.mac) = (proposal.peer_id, proposal.mac);
        }
        let params = params(Role::Server, accept.endpoint, peer, &confirm, accept.release().unwrap_or(Release::V20));
        self.wire.deadline = None;
        if params.first_contact {
            self.state = State::AwaitLink(params);
            self.event = Some(Event::BringUpLink(params));
        } else {
            self.over(Outcome::Smc(params));
        }
    }

    fn over(&mut self, outcome: Outcome) {
        self.wire.finish(outcome);
        self.state = State::Over;
    }
}

/// Version 2 before version 1; if neither will do, the code of the first that did not.
fn choose(ours: &Offer, theirs: &Proposal) -> Result<Choice, Diagnosis> {
    let mut first_failure = None;
    if let (Some((eids, limits)), Some(offer)) = (&ours.v2, &theirs.v2) {
        match offer.eids.iter().find(|eid| eids.contains(eid)) {
            Some(eid) => match choose_release(*limits, offer) {
                Ok(release) => return Ok(Choice::V2(*eid, release)),
                Err(code) => first_failure = Some(code),
            },
            None => first_failure = Some(Diagnosis::NO_UEID),
        }
    }
    if let (Some(ours), Some(theirs)) = (&ours.v1, &theirs.v1) {
        if ours.meet(theirs) {
            return Ok(Choice::V1);
        }
        first_failure = first_failure.or(Some(Diagnosis::PREFIX));
    }
    // Nothing was offered both ways.
    Err(first_failure.unwrap_or(Diagnosis::MODE_MISMATCH))
}

fn choose_release(ours: Limits, offer: &OfferV2) -> Result<Release, Diagnosis> {
    let Release::V21(theirs) = offer.release else {
        return Ok(Release::V20);
    };
    let max_conns = ours.max_conns.min(theirs.max_conns);
    let max_links = ours.max_links.min(theirs.max_links);
    if max_conns < 16 {
        return Err(Diagnosis::MAX_CONNECTIONS);
    }
    if max_links < 1 {
        return Err(Diagnosis::MAX_LINKS);
    }
    let features = ours.features & theirs.features;
    Ok(Release::V21(Limits { max_conns, max_links, features }))
}

/// A client that answers something else than what was asked. True: it means another link group.
fn check_confirm(accept: &AcceptConfirm, confirm: &AcceptConfirm) -> Result<(), (Diagnosis, bool)> {
    if accept.first_contact() != confirm.first_contact() {
        return Err((Diagnosis::OUT_OF_SYNC, true));
    }
    match (accept.form, confirm.form) {
        (Form::V1 { .. }, Form::V1 { .. }) => Ok(()),
        (Form::V2 { first_contact: Some(ours), .. }, Form::V2 { first_contact: Some(theirs), .. }) => {
            check_limits(ours.release, theirs.release).map_err(|code| (code, false))
        }
        (Form::V2 { .. }, Form::V2 { .. }) => Ok(()),
        _ => Err((Diagnosis::VERSION_MISMATCH, false)),
    }
}

fn check_limits(ours: Release, theirs: Release) -> Result<(), Diagnosis> {
    match (ours, theirs) {
        (Release::V20, Release::V20) => Ok(()),
        (Release::V21(ours), Release::V21(theirs)) => {
            if ours.max_conns != theirs.max_conns {
                Err(Diagnosis::MAX_CONNECTIONS)
            } else if ours.max_links != theirs.max_links {
                Err(Diagnosis::MAX_LINKS)
            } else {
                Ok(())
            }
        }
        _ => Err(Diagnosis::RELEASE),
    }
}
