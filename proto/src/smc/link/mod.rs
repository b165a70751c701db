//! A link group of one link: keeps the RDMA connection between two SMC-R peers agreed and alive.
//!
//! Roles are per group: the server end accepted the connection that made it. The group answers LLC
//! messages, confirms a new link, refuses second links, announces and withdraws memory, tests an
//! idle link and ends it. RFC 7609 section 3, Linux `net/smc/smc_llc.c`. The driver owns
//! queue pair and memory; connections are [`super::conn`].
//!
//! The order of calls: after each `handle_*` or command `poll_event` until `None` (messages are
//! held back until then), then `poll_transmit` until `None`, then `poll_event` once more, then look at
//! `poll_timeout`. LLC wants answers within 2 s, whatever the program is doing.

mod answer;
mod config;
pub mod key;
mod timers;

use self::timers::{Timer, Timers};
use super::Time;
use super::handshake::Role;
use super::id::Rkey;
use super::list::List;
use super::llc::{
    ConfirmRkey, DeleteLink, DeleteRkey, Frame, LinkReason, MAX_DELETE_KEYS, Message, TestLink,
};

pub use self::config::{Config, MAX_CONNECTIONS};
pub use self::timers::{CONFIRM_CLIENT, FLOW, IDLE_CLIENT, IDLE_SERVER, TEST_LINK};

/// Messages and events held for the driver.
const QUEUE: usize = 8;

/// A link group.
#[derive(Debug)]
pub struct Group {
    config: Config,
    state: State,
    timers: Timers,
    /// When anything last arrived.
    last_arrival: Time,
    connections: u8,
    /// The exchange that this end began and whose answer is missing.
    flow: Option<Flow>,
    transmit: List<Outgoing, QUEUE>,
    events: List<Queued, QUEUE>,
}

/// What a group is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not started.
    New,
    /// Waiting for the peer's Confirm Link.
    Confirming,
    /// In use.
    Active,
    /// Delete Link is to be sent; no connection may join.
    Closing,
    /// Over; the queue pair can be destroyed.
    Gone,
}

/// What the driver has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A client's queue pair has to go to RTS before the next message is sent.
    RaiseToRts,
    /// The link is confirmed; tell the handshake.
    Ready,
    /// The link was not confirmed in time, or ended before it was; tell the handshake, destroy the
    /// queue pair.
    ConfirmFailed,
    /// The peer withdrew these memories: connections that write there end. Nothing may be written
    /// there after the messages that follow this event.
    RkeysDeleted(List<Rkey, MAX_DELETE_KEYS>),
    /// The exchange begun by [`Group::confirm_rkey`] or [`Group::delete_rkeys`] is over.
    FlowDone {
        /// The peer agreed; else it refused, or did not answer in time.
        agreed: bool,
    },
    /// The group is over: every connection in it is aborted, the queue pair destroyed.
    Terminated {
        /// The peer ended it.
        by_peer: bool,
        /// Why.
        reason: LinkReason,
    },
}

/// Why a command or a message was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// The driver has to take events and messages first; nothing was changed.
    Backlog,
    /// Another exchange of this end runs; wait for [`Event::FlowDone`].
    Busy,
    /// The group is not active, or has no room for a connection.
    Unavailable,
    /// More than [`MAX_DELETE_KEYS`] keys, or none.
    Count,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    ConfirmRkey(Rkey),
    DeleteRkeys,
}

/// A message, and what its hand-over to the driver brings about.
#[derive(Clone, Copy, Debug, Default)]
struct Outgoing {
    frame: Frame,
    then: Option<Event>,
}

/// An event as the list keeps it, whose places need a default.
#[derive(Clone, Copy, Debug, Default)]
struct Queued(Option<Event>);

impl Group {
    /// A group that waits for [`Group::start`].
    pub fn new(config: Config) -> Group {
        Group {
            config,
            state: State::New,
            timers: Timers::default(),
            last_arrival: Time::ZERO,
            connections: 0,
            flow: None,
            transmit: List::new(),
            events: List::new(),
        }
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Number of the link.
    pub fn link(&self) -> u8 {
        self.config.link
    }

    /// Begins to confirm the link: the server asks (its queue pair is in RTS), the client waits.
    pub fn start(&mut self, now: Time) {
        if self.state != State::New {
            return;
        }
        self.state = State::Confirming;
        self.last_arrival = now;
        match self.config.role {
            Role::Server => {
                self.send(Message::ConfirmLink(self.config.confirm_link(false)), None);
                self.timers.set(Timer::Confirm, now + FLOW);
            }
            Role::Client => self.timers.set(Timer::Confirm, now + CONFIRM_CLIENT),
        }
    }

    /// Takes an LLC message. Unknown and unreadable ones are ignored, as in Linux.
    pub fn handle_llc(&mut self, now: Time, bytes: &[u8]) -> Result<(), GroupError> {
        if self.transmit.is_full() || self.events.is_full() {
            return Err(GroupError::Backlog);
        }
        self.handle_arrival(now);
        match Message::parse(bytes) {
            Ok((family, message)) if family == self.config.family => self.answer(message),
            _ => {}
        }
        Ok(())
    }

    /// Notes that something arrived by the link (a CDC message): it is alive.
    pub fn handle_arrival(&mut self, now: Time) {
        self.last_arrival = now;
        self.timers.clear(Timer::TestAnswer);
        self.arm_test();
    }

    /// The queue pair failed: every connection ends, no message can be sent.
    pub fn handle_link_down(&mut self) {
        if self.state != State::Gone {
            self.transmit.clear();
            self.gone(Event::Terminated {
                by_peer: false,
                reason: LinkReason::LOST_PATH,
            });
        }
    }

    /// Lets time pass; to be called when [`Group::poll_timeout`] is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.timers.take_due(Timer::Confirm, now) {
            self.gone(Event::ConfirmFailed);
        }
        if self.timers.take_due(Timer::Flow, now) {
            self.flow = None;
            self.push(Event::FlowDone { agreed: false });
        }
        if self.timers.take_due(Timer::TestAnswer, now) {
            self.handle_link_down();
        }
        if self.timers.take_due(Timer::Test, now) && self.state == State::Active {
            self.send(
                Message::TestLink(TestLink {
                    response: false,
                    user_data: [0; 16],
                }),
                None,
            );
            self.timers.set(Timer::TestAnswer, now + FLOW);
        }
        if self.timers.take_due(Timer::Idle, now) {
            self.shutdown();
        }
    }

    /// A connection joins.
    pub fn connection_opened(&mut self) -> Result<(), GroupError> {
        let open = matches!(self.state, State::New | State::Confirming | State::Active);
        if !open || self.connections >= self.config.max_conns {
            return Err(GroupError::Unavailable);
        }
        self.connections += 1;
        self.timers.clear(Timer::Idle);
        Ok(())
    }

    /// A connection has left. A group without connections ends after 10 minutes.
    pub fn connection_closed(&mut self, now: Time) {
        self.connections = self.connections.saturating_sub(1);
        if self.connections == 0 && self.state == State::Active {
            let idle = if self.config.role == Role::Server {
                IDLE_SERVER
            } else {
                IDLE_CLIENT
            };
            self.timers.set(Timer::Idle, now + idle);
        }
    }

    /// Announces a registered memory. Needless on one link: the CLC messages do it too.
    pub fn confirm_rkey(&mut self, now: Time, rkey: Rkey, address: u64) -> Result<(), GroupError> {
        let request = ConfirmRkey {
            response: false,
            negative: false,
            retry: false,
            rkey,
            address,
            others: List::new(),
        };
        self.begin_flow(now, Flow::ConfirmRkey(rkey), Message::ConfirmRkey(request))
    }

    /// Withdraws registered memories. After [`Event::FlowDone`] the peer writes to them no more, and
    /// their places in its table (255 in Linux) are free.
    pub fn delete_rkeys(&mut self, now: Time, keys: &[Rkey]) -> Result<(), GroupError> {
        if keys.is_empty() || keys.len() > MAX_DELETE_KEYS {
            return Err(GroupError::Count);
        }
        let keys = List::of(keys);
        let request = DeleteRkey {
            response: false,
            negative: false,
            errors: 0,
            keys,
            more: 0,
        };
        self.begin_flow(now, Flow::DeleteRkeys, Message::DeleteRkey(request))
    }

    /// Ends the group in order: its connections have ended, or the process is about to exit.
    pub fn shutdown(&mut self) {
        self.close(LinkReason::PROGRAM, true, false);
    }

    /// Ends the group at once, for instance because the peer broke the rules or sent a Decline with
    /// "out of sync".
    pub fn terminate(&mut self, reason: LinkReason) {
        self.close(reason, false, false);
    }

    /// The next thing to do.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front().and_then(|queued| queued.0)
    }

    /// The next message to send, once all events have been taken.
    pub fn poll_transmit(&mut self) -> Option<Frame> {
        if !self.events.is_empty() {
            return None;
        }
        let outgoing = self.transmit.pop_front()?;
        if let Some(event) = outgoing.then {
            match event {
                Event::Terminated { .. } => self.gone(event),
                _ => self.push(event),
            }
        }
        Some(outgoing.frame)
    }

    /// When to call [`Group::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    fn begin_flow(&mut self, now: Time, flow: Flow, request: Message) -> Result<(), GroupError> {
        if self.state != State::Active {
            return Err(GroupError::Unavailable);
        }
        if self.flow.is_some() {
            return Err(GroupError::Busy);
        }
        if self.transmit.is_full() {
            return Err(GroupError::Backlog);
        }
        self.flow = Some(flow);
        self.send(request, None);
        self.timers.set(Timer::Flow, now + FLOW);
        Ok(())
    }

    /// Queues Delete Link for all links; the group is gone once it was handed over.
    fn close(&mut self, reason: LinkReason, orderly: bool, by_peer: bool) {
        if matches!(self.state, State::Closing | State::Gone) {
            return;
        }
        let terminated = Event::Terminated { by_peer, reason };
        if self.state != State::Active {
            // No link to say it on.
            self.transmit.clear();
            self.gone(terminated);
            return;
        }
        self.state = State::Closing;
        self.timers = Timers::default();
        // Answers that were not sent yet are void now, and so is a flow.
        self.transmit.clear();
        let request = DeleteLink {
            response: false,
            all: true,
            orderly,
            link: 0,
            reason,
        };
        self.send(Message::DeleteLink(request), Some(terminated));
    }

    fn gone(&mut self, event: Event) {
        let confirmed = !matches!(self.state, State::New | State::Confirming);
        let event = if confirmed {
            event
        } else {
            Event::ConfirmFailed
        };
        self.state = State::Gone;
        self.timers = Timers::default();
        self.flow = None;
        // The last event matters more than any before it.
        if self.events.is_full() {
            self.events.clear();
        }
        self.push(event);
    }

    fn active(&mut self) {
        self.state = State::Active;
        self.timers.clear(Timer::Confirm);
        self.arm_test();
    }

    fn arm_test(&mut self) {
        if let (State::Active, Some(after)) = (self.state, self.config.test_link) {
            self.timers.set(Timer::Test, self.last_arrival + after);
        }
    }

    fn send(&mut self, message: Message, then: Option<Event>) {
        self.transmit.push(Outgoing {
            frame: message.emit(self.config.family),
            then,
        });
    }

    fn push(&mut self, event: Event) {
        self.events.push(Queued(Some(event)));
    }
}
