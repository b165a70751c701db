//! What a link group tells its driver: its state, events, errors.

use crate::smc::id::Rkey;
use crate::smc::list::List;
use crate::smc::llc::{AddLink, LinkReason, MAX_DELETE_KEYS};

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
    /// Over; the queue pairs can be destroyed.
    Gone,
}

/// What the driver has to do.
// Few at a time; there is no allocator to box it with.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A client's queue pair has to go to RTS before the next message is sent.
    RaiseToRts {
        /// Place of the link.
        link: usize,
    },
    /// The first link is confirmed; tell the handshake.
    Ready,
    /// The first link was not confirmed in time, or ended before it was; tell the handshake, destroy the
    /// queue pair.
    ConfirmFailed,
    /// Server: a second link may be made, for the first time or again. If there is another device: a queue pair, then
    /// [`Group::offer_link`](super::Group::offer_link); else nothing, or, the first time, [`Group::forgo_link`](super::Group::forgo_link).
    SecondLinkDue,
    /// Client: the server offers its end of a second link. If there is a device to match: a queue pair in RTR, then
    /// [`Group::accept_link`](super::Group::accept_link); else [`Group::reject_link`](super::Group::reject_link).
    LinkOffered(AddLink),
    /// Server: the client's end of the second link. Its queue pair has to go to RTR and RTS before the next message is
    /// sent; if it can't, [`Group::handle_link_down`](super::Group::handle_link_down).
    LinkAccepted {
        /// Place of the link.
        link: usize,
        /// The client's end.
        answer: AddLink,
    },
    /// The second link is confirmed: connections may use it.
    LinkReady {
        /// Place of the link.
        link: usize,
    },
    /// A link does not carry data any more; what used it goes on over the other. Its queue pair goes to error.
    LinkDown {
        /// Place of the link.
        link: usize,
        /// Place of the one that is left.
        to: usize,
    },
    /// A second link did not come up: its queue pair is to be destroyed.
    LinkGone {
        /// Place of the link.
        link: usize,
    },
    /// The peer withdrew these memories: connections on this link that write there end. Nothing may be written
    /// there after the messages that follow this event.
    RkeysDeleted {
        /// Place of the link whose keys these are.
        link: usize,
        /// The keys.
        keys: List<Rkey, MAX_DELETE_KEYS>,
    },
    /// The exchange begun by [`Group::confirm_rkey`](super::Group::confirm_rkey) or [`Group::delete_rkeys`](super::Group::delete_rkeys) is over.
    FlowDone {
        /// The peer agreed; else it refused, or did not answer in time.
        agreed: bool,
    },
    /// The group is over: every connection in it is aborted, the queue pairs destroyed.
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
    /// The group is not active, or has no room for a connection, or this is not due.
    Unavailable,
    /// More than [`MAX_DELETE_KEYS`] keys, or none.
    Count,
}
