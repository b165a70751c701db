//! A link group of one or two links: keeps the RDMA connection between two SMC-R peers agreed and alive.
//!
//! Roles are per group: the server end accepted the connection that made it. The group answers LLC
//! messages, confirms a new link, sets up a second one over another device ([`second`]), announces and withdraws
//! memory, tests an idle link, moves what a link carried to the other one ([`failover`]), and ends. RFC 7609
//! section 3, Linux `net/smc/smc_llc.c`. The driver owns queue pairs and memory; connections are [`super::conn`].
//!
//! Links are named by their place, 0 or 1; numbers are what they are called on the wire. A link that has failed keeps its place
//! until another one is made there.
//!
//! The order of calls: after each `handle_*` or command `poll_event` until `None` (messages are
//! held back until then), then `poll_transmit` until `None`, then `poll_event` once more, then look at
//! `poll_timeout`. LLC wants answers within 2 s, whatever the program is doing.

mod answer;
mod config;
mod event;
mod failover;
pub mod key;
mod one;
mod peer_keys;
mod second;
mod timers;

use self::one::Link;
use self::peer_keys::{Name, PeerKeys};
use self::second::Again;
use self::timers::{GroupTimers, OfGroup, OfLink};
use super::Time;
use super::handshake::Role;
use super::id::Rkey;
use super::list::List;
use super::llc::{AddLink, ConfirmRkey, DeleteLink, DeleteRkey, Family, Frame, LinkReason, MAX_DELETE_KEYS, Message, RkeyOnLink, TestLink};

pub use self::config::{Config, MAX_CONNECTIONS};
pub use self::event::{Event, GroupError, State};
pub use self::one::{NewLink, OwnKey};
pub use self::timers::{AGAIN, AGAIN_MOST, CONFIRM_CLIENT, FLOW, IDLE_CLIENT, IDLE_SERVER, SECOND, TEST_LINK};

/// Links of a group at most.
pub const LINKS: usize = 2;
/// Messages and events held for the driver.
const QUEUE: usize = 8;

/// A link group.
#[derive(Debug)]
pub struct Group {
    config: Config,
    state: State,
    timers: GroupTimers,
    links: [Option<Link>; LINKS],
    connections: u8,
    /// How another attempt at a second link is due.
    again: Again,
    /// The highest number that a link has had.
    numbered: u8,
    /// The time of the last call.
    clock: Time,
    /// The exchange that this end began and whose answer is missing.
    flow: Option<Flow>,
    /// A server's request that waits for the driver's answer.
    offered: Option<AddLink>,
    peer_keys: PeerKeys,
    transmit: List<Outgoing, QUEUE>,
    events: List<Queued, QUEUE>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    ConfirmRkey(Rkey),
    DeleteRkeys,
}

/// A message, the link that it goes by, and what its hand-over to the driver brings about.
#[derive(Clone, Copy, Debug, Default)]
struct Outgoing {
    link: usize,
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
            timers: GroupTimers::default(),
            links: [Some(Link::first(&config, Time::ZERO)), None],
            connections: 0,
            again: Again::default(),
            numbered: config.link,
            clock: Time::ZERO,
            flow: None,
            offered: None,
            peer_keys: PeerKeys::default(),
            transmit: List::new(),
            events: List::new(),
        }
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Number of the link at this place, 0 if there is none.
    pub fn number(&self, link: usize) -> u8 {
        self.link(link).map_or(0, |l| l.number)
    }

    /// Whether the link at this place carries data.
    pub fn is_active(&self, link: usize) -> bool {
        self.state == State::Active && self.link(link).is_some_and(Link::is_active)
    }

    /// Begins to confirm the link: the server asks (its queue pair is in RTS), the client waits.
    pub fn start(&mut self, now: Time) {
        if self.state != State::New {
            return;
        }
        self.state = State::Confirming;
        self.clock = now;
        let mut first = Link::first(&self.config, now);
        match self.config.role {
            Role::Server => {
                self.send(0, Message::ConfirmLink(first.confirm(&self.config, false)), None);
                first.timers.set(OfLink::Confirm, now + FLOW);
            }
            Role::Client => first.timers.set(OfLink::Confirm, now + CONFIRM_CLIENT),
        }
        self.links[0] = Some(first);
    }

    /// Takes an LLC message that came by this link. Unknown and unreadable ones are ignored, as in Linux.
    pub fn handle_llc(&mut self, now: Time, link: usize, bytes: &[u8]) -> Result<(), GroupError> {
        self.handle_message(now, link, Message::parse(bytes).ok())
    }

    /// The same for one that the driver has parsed; None: it could not be.
    pub fn handle_message(&mut self, now: Time, link: usize, message: Option<(Family, Message)>) -> Result<(), GroupError> {
        // What one message brings about at most: two of each.
        if self.transmit.len() + 2 > QUEUE || self.events.len() + 2 > QUEUE {
            return Err(GroupError::Backlog);
        }
        if self.is_over(link) {
            return Ok(()); // left over
        }
        self.clock = now;
        self.handle_arrival(now, link);
        if let Some((_, message)) = message.filter(|(family, _)| *family == self.config.family) {
            self.answer(now, link, message);
        }
        Ok(())
    }

    /// Notes that something arrived by the link (a CDC message): it is alive.
    pub fn handle_arrival(&mut self, now: Time, link: usize) {
        let test = self.config.test_link;
        if let Some(l) = self.link_mut(link) {
            l.arrived(now, test);
        }
    }

    /// Lets time pass; to be called when [`Group::poll_timeout`] is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.clock = now;
        for place in 0..LINKS {
            self.link_timeout(place, now);
        }
        if self.timers.take_due(OfGroup::Flow, now) {
            self.flow = None;
            self.push(Event::FlowDone { agreed: false });
        }
        if self.timers.take_due(OfGroup::Again, now) {
            self.again_due();
        }
        if self.timers.take_due(OfGroup::Idle, now) {
            self.shutdown();
        }
    }

    fn link_timeout(&mut self, place: usize, now: Time) {
        let Some(link) = self.links[place].as_mut() else { return };
        if link.timers.take_due(OfLink::Confirm, now) || link.timers.take_due(OfLink::TestAnswer, now) {
            return self.handle_link_down(place);
        }
        if link.timers.take_due(OfLink::Test, now) && link.is_active() {
            link.timers.set(OfLink::TestAnswer, now + FLOW);
            let test = TestLink { response: false, user_data: [0; 16] };
            self.send(place, Message::TestLink(test), None);
        }
    }

    /// A connection joins.
    pub fn connection_opened(&mut self) -> Result<(), GroupError> {
        let open = matches!(self.state, State::New | State::Confirming | State::Active);
        if !open || self.connections >= self.config.max_conns {
            return Err(GroupError::Unavailable);
        }
        self.connections += 1;
        self.timers.clear(OfGroup::Idle);
        Ok(())
    }

    /// A connection has left. A group without connections ends after 10 minutes.
    pub fn connection_closed(&mut self, now: Time) {
        self.connections = self.connections.saturating_sub(1);
        if self.connections == 0 && self.state == State::Active {
            let idle = if self.config.role == Role::Server { IDLE_SERVER } else { IDLE_CLIENT };
            self.timers.set(OfGroup::Idle, now + idle);
        }
    }

    /// Announces a registered memory by what it is called on each link. Needless on one link: the CLC messages do it
    /// too.
    pub fn confirm_rkey(&mut self, now: Time, keys: [OwnKey; LINKS]) -> Result<(), GroupError> {
        let Some(by) = self.usable() else { return Err(GroupError::Unavailable) };
        let mut others = List::new();
        for place in (0..LINKS).filter(|p| *p != by && self.is_active(*p)) {
            let OwnKey { rkey, address } = keys[place];
            others.push(RkeyOnLink { link: self.number(place), rkey, address });
        }
        let OwnKey { rkey, address } = keys[by];
        let request = ConfirmRkey { response: false, negative: false, retry: false, rkey, address, others };
        self.begin_flow(now, Flow::ConfirmRkey(rkey), Message::ConfirmRkey(request))
    }

    /// Withdraws registered memories, by their keys on the first link that is active. After [`Event::FlowDone`] the
    /// peer writes to them no more, and their places in its table (255 in Linux) are free.
    pub fn delete_rkeys(&mut self, now: Time, keys: &[Rkey]) -> Result<(), GroupError> {
        if keys.is_empty() || keys.len() > MAX_DELETE_KEYS {
            return Err(GroupError::Count);
        }
        let keys = List::of(keys);
        let request = DeleteRkey { response: false, negative: false, errors: 0, keys, more: 0 };
        self.begin_flow(now, Flow::DeleteRkeys, Message::DeleteRkey(request))
    }

    /// The CLC messages have named a memory of the peer's on this link.
    pub fn note_peer_key(&mut self, link: usize, rkey: Rkey, address: u64) {
        self.peer_keys.learn(link, Name { rkey, address: Some(address) }, None);
    }

    /// What a memory of the peer's with this key on a link is called on another one: key and address.
    pub fn peer_key(&self, link: usize, rkey: Rkey, other: usize) -> Option<(Rkey, u64)> {
        self.peer_keys.find(link, rkey, other)
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

    /// The next message to send and the link that it goes by, once all events have been taken.
    pub fn poll_transmit(&mut self) -> Option<(usize, Frame)> {
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
        Some((outgoing.link, outgoing.frame))
    }

    /// When to call [`Group::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        let links = self.links.iter().flatten().filter_map(|l| l.timers.next());
        links.chain(self.timers.next()).min()
    }

    /// Whether the peer is to answer within a time.
    pub fn awaits_answer(&self) -> bool {
        let awaits = |l: &Link| l.timers.runs(OfLink::Confirm) || l.timers.runs(OfLink::TestAnswer);
        self.timers.runs(OfGroup::Flow) || self.links.iter().flatten().any(awaits)
    }

    fn begin_flow(&mut self, now: Time, flow: Flow, request: Message) -> Result<(), GroupError> {
        let Some(by) = self.usable() else { return Err(GroupError::Unavailable) };
        if self.flow.is_some() {
            return Err(GroupError::Busy);
        }
        if self.transmit.is_full() {
            return Err(GroupError::Backlog);
        }
        self.flow = Some(flow);
        self.send(by, request, None);
        self.timers.set(OfGroup::Flow, now + FLOW);
        Ok(())
    }

    /// Queues Delete Link for all links; the group is gone once it was handed over.
    fn close(&mut self, reason: LinkReason, orderly: bool, by_peer: bool) {
        if matches!(self.state, State::Closing | State::Gone) {
            return;
        }
        let terminated = Event::Terminated { by_peer, reason };
        let Some(by) = self.usable() else {
            // No link to say it on.
            self.transmit.clear();
            self.gone(terminated);
            return;
        };
        self.state = State::Closing;
        self.stop_timers();
        // Answers that were not sent yet are void now, and so is a flow.
        self.transmit.clear();
        let request = DeleteLink { response: false, all: true, orderly, link: 0, reason };
        self.send(by, Message::DeleteLink(request), Some(terminated));
    }

    fn gone(&mut self, event: Event) {
        let confirmed = !matches!(self.state, State::New | State::Confirming);
        let event = if confirmed { event } else { Event::ConfirmFailed };
        self.state = State::Gone;
        self.stop_timers();
        self.flow = None;
        // The last event matters more than any before it.
        if self.events.is_full() {
            self.events.clear();
        }
        self.push(event);
    }

    fn stop_timers(&mut self) {
        self.timers = GroupTimers::default();
        for link in self.links.iter_mut().flatten() {
            link.timers = Default::default();
        }
    }

    fn link(&self, place: usize) -> Option<&Link> {
        self.links.get(place)?.as_ref()
    }

    fn link_mut(&mut self, place: usize) -> Option<&mut Link> {
        self.links.get_mut(place)?.as_mut()
    }

    /// The first link that carries data.
    fn usable(&self) -> Option<usize> {
        (0..LINKS).find(|place| self.is_active(*place))
    }

    fn send(&mut self, link: usize, message: Message, then: Option<Event>) {
        let frame = message.emit(self.config.family);
        self.transmit.push(Outgoing { link, frame, then });
    }

    fn push(&mut self, event: Event) {
        self.events.push(Queued(Some(event)));
    }
}
