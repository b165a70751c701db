//! What both halves of the handshake do with the TCP stream: collect a message, hold one to send,
//! keep a deadline, and end.

use super::{Failure, Fallback, Outcome};
use crate::smc::Time;
use crate::smc::clc::assembler::Assembler;
use crate::smc::clc::decline::Decline;
use crate::smc::clc::{Frame, Message};
use crate::smc::diagnosis::Diagnosis;
use crate::smc::error::WireError;
use crate::smc::id::PeerId;

/// The stream side of one handshake.
#[derive(Debug)]
pub(super) struct Wire {
    peer_id: PeerId,
    assembler: Assembler,
    transmit: Option<Frame>,
    pub deadline: Option<Time>,
    outcome: Option<Outcome>,
}

impl Wire {
    pub fn new(peer_id: PeerId) -> Wire {
        let assembler = Assembler::new();
        Wire { peer_id, assembler, transmit: None, deadline: None, outcome: None }
    }

    pub fn want(&self) -> usize {
        if self.outcome.is_some() { 0 } else { self.assembler.want() }
    }

    pub fn is_inside(&self) -> bool {
        self.assembler.is_inside()
    }

    pub fn outcome(&self) -> Option<Outcome> {
        // A Decline has to be in the stream before the program's bytes.
        if self.transmit.is_some() { None } else { self.outcome }
    }

    pub fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    /// Takes bytes up to the end of the message. Gives the message once it is whole; a Decline, and
    /// a message that cannot be read, are dealt with here.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> (usize, Option<Message>) {
        if self.is_over() {
            return (0, None);
        }
        let taken = match self.assembler.handle_bytes(bytes) {
            Ok(taken) => taken,
            Err(error) => {
                self.refuse(error);
                return (bytes.len(), None);
            }
        };
        let parsed = match self.assembler.message() {
            Some(message) => Message::parse(message),
            None => return (taken, None),
        };
        self.assembler.clear();
        match parsed {
            Ok(Message::Decline(decline)) => {
                self.declined(&decline);
                (taken, None)
            }
            Ok(message) => (taken, Some(message)),
            Err(error) => {
                self.refuse(error);
                (taken, None)
            }
        }
    }

    pub fn send(&mut self, message: &Message) {
        self.transmit = Some(message.emit());
    }

    pub fn poll_transmit(&mut self) -> Option<Frame> {
        self.transmit.take()
    }

    /// Sends a Decline and ends on TCP. The layout of version 1 is one that every peer reads.
    pub fn decline(&mut self, code: Diagnosis, end_group: bool) {
        let mut decline = Decline::new(self.peer_id, code);
        decline.out_of_sync = end_group;
        self.send(&Message::Decline(decline));
        self.finish(Outcome::Fallback(Fallback { code, by_peer: false, end_group }));
    }

    pub fn fail(&mut self, failure: Failure) {
        self.transmit = None;
        self.finish(Outcome::Fail(failure));
    }

    pub fn finish(&mut self, outcome: Outcome) {
        self.deadline = None;
        self.outcome.get_or_insert(outcome);
    }

    /// The link did not come up: leaves the peer time for its own Decline.
    pub fn await_decline(&mut self, until: Time) {
        self.deadline = Some(until);
    }

    pub fn is_due(&self, now: Time) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    fn declined(&mut self, decline: &Decline) {
        // What was to be sent is void; a Decline is never answered.
        self.transmit = None;
        self.finish(Outcome::Fallback(Fallback { code: decline.diagnosis, by_peer: true, end_group: decline.out_of_sync }));
    }

    fn refuse(&mut self, error: WireError) {
        match error.diagnosis() {
            Some(code) => self.decline(code, false),
            None => self.fail(Failure::Protocol(error)),
        }
    }
}
