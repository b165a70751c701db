//! One connection: two directions, each in the kernel's TCP stream or in a ring.
//!
//! The socket table calls [`tx`] and [`rx`] (with [`from_tcp`]). [`switch`] decides where the sender's stream goes on and
//! [`follow`] goes there for the receiver, which has [`offer`]ed it, with the [`proof`] in the first switch (for which the connecting side waits as [`begin`] says). They copy through
//! `transport` (large amounts as [`bulk`] and [`pace`] say, a [`file`] by way of [`scratch`] where these write past the caches), wake through [`bell`] (whom the peer has [`known`]), are woken through [`ear`]s as well, and wait through [`wait`] (which polls as [`spin`] allows; for [`room`] as well);
//! a ring that would take the processor from its sender is [`kept`] for a while where the sleeper is [`lenient`];
//! arrivals for who does not look at each connection it [`post`]s;
//! [`kernel`] looks at the socket beside the ring, [`debt`] sends through it what the ring still holds, [`take_up`] is for what
//! lies unread before a switch when the descriptor leaves (read [`here`] where it does not in the end, by all its [`heirs`]), [`refill`] for more than a ring that a former program has left, [`stuck`] says when a full ring is given up, [`behind`] how sending goes on behind the peer's half-close. [`linked`], [`way_back`] and [`urgent`] are for rings whose
//! other end is a link. [`end`] has the rules of an end and of death, [`close`] those of our own, [`unmap`] gives the memory back, [`inside`] counts threads that
//! are in calls, [`counted`] those of them that wait; [`beside`] is for several readers of one connection, [`peek`] for one that only looks;
//! [`own_end`] answers for the other end where this process has that too; [`idle_sets`] are those that a reader is a member of for nothing;
//! [`orphan`] looks whether the process lives that has the link; [`patience`] says how long who holds the other end is waited for; [`pipes`] waits for splice's; [`handlers`] tells a wait that polls of the program's signals; [`count`] compares our byte counts with the kernel's.

pub mod asleep;
pub mod begin;
pub mod behind;
pub mod bell;
pub mod beside;
pub mod budget;
pub mod bufs;
pub mod bulk;
pub mod called;
pub mod close;
pub mod count;
pub mod counted;
pub mod debt;
pub mod disconnected;
pub mod ear;
pub mod end;
pub mod fast;
pub mod file;
pub mod follow;
pub mod from_tcp;
pub mod handlers;
pub mod heirs;
pub mod here;
pub mod idle;
pub mod idle_sets;
pub mod inside;
pub mod kept;
pub mod kernel;
pub mod known;
pub mod lenient;
pub mod linked;
pub mod near;
pub mod offer;
pub mod orphan;
pub mod own_end;
pub mod pace;
pub mod patience;
pub mod peek;
pub mod pipes;
pub mod post;
pub mod proof;
pub mod refill;
pub mod resets;
pub mod room;
pub mod rounds;
pub mod rouse;
pub mod rx;
pub mod scratch;
pub mod seldom;
pub mod shadow;
pub mod shut;
pub mod signals;
pub mod spin;
pub mod stuck;
pub mod switch;
pub mod take_up;
pub mod threads;
mod timer;
pub mod tx;
pub mod unmap;
pub mod urgent;
pub mod wait;
pub mod waiter;
pub mod way_back;
pub mod window;
pub mod within;
