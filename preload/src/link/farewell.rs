//! How a link group ends: what is said, and how long its queue pairs stay for what the peer has to say still.
//!
//! The last part of [`Group`], under the lock of all links. Called by [`super::group`] for what the LLC machine decides and
//! hears, by [`super::state`] and [`super::arrive`], which end groups and destroy those that are through.

use super::group::Group;
use super::one::Link;
use crate::verbs::device::Device;
use smcr_proto::smc::Time;
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::llc::{LinkReason, Message};

/// What a kernel does when it is told that the group is over: it aborts what is left of it, connection by connection, and waits for
/// each of these messages to arrive, then says Delete Link itself; as server once more before. Where soft RoCE is under it
/// that wait has no end (its retries have none), and holds the program's close().
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Farewell {
    None,
    /// Delete Link is awaited so often.
    Awaited(u8),
    Said(Time),
}

/// How long it is awaited.
const FAREWELL: Time = Time::from_secs(2);
/// How long a group that is over keeps its queue pair, for the last message.
const LAST_WORDS: Time = Time::from_millis(200);

impl Group {
    /// Ends the group: in order, or at once.
    pub fn end(&mut self, devices: &[Device], orderly: bool, now: Time) {
        match &mut self.machine {
            Some(m) if orderly => m.shutdown(),
            Some(m) => m.terminate(LinkReason::PROTOCOL_VIOLATION),
            None => self.over = Some(now),
        }
        self.run(devices, now);
    }

    /// This end has said that the group is over: a kernel says it too.
    pub(super) fn await_farewell(&mut self) {
        let hears = !self.ours && self.links.iter().any(Link::is_usable);
        if self.over.is_none() && hears {
            self.farewell = Farewell::Awaited(if self.role == Role::Server { 1 } else { 2 });
        }
    }

    /// An LLC message came: perhaps that.
    pub(super) fn hear_farewell(&mut self, message: Option<&Message>, now: Time) {
        if let Farewell::Awaited(times) = self.farewell
            && let Some(Message::DeleteLink(m)) = message
            && m.all
        {
            self.farewell = if times > 1 { Farewell::Awaited(times - 1) } else { Farewell::Said(now) };
        }
    }

    /// A group that is over keeps its queue pair until then; None: not longer than now.
    pub fn lasts_until(&self) -> Option<Time> {
        let over = self.over?;
        match self.farewell {
            Farewell::Awaited(_) => Some(over + FAREWELL),
            Farewell::Said(at) => Some(at + LAST_WORDS),
            Farewell::None => (!self.is_quiet()).then_some(over + LAST_WORDS),
        }
    }

    /// Whether the peer has not said its last yet.
    pub fn awaits_farewell(&self) -> bool {
        matches!(self.farewell, Farewell::Awaited(_)) && self.links.iter().any(Link::is_usable)
    }

    /// Destroys the queue pairs: nothing of the peer's arrives any more.
    pub fn silence(&mut self, devices: &[Device]) {
        for l in &mut self.links {
            l.silence(&devices[l.device]);
        }
    }
}
