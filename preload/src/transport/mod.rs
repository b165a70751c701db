//! Moving bytes between two processes of one host: regions, rings, and wakes.
//!
//! Knows no sockets and no switch. `engine` puts a connection together from these parts:
//! - [`channel`]: what a peer says;
//! - [`region`]: the memory of one connection, shared with one peer;
//! - [`annex`]: room behind it, for what has to go through TCP again;
//! - [`wide`]: more of it for a ring that carries bulk;
//! - [`ring`]: copying in and out, and the check of the other end's cursor;
//! - [`waiters`]: this family's sleep words and eventfds;
//! - [`posts`]: what a producer writes for consumers that do not look at each connection;
//! - [`peers`]: the processes at the other ends;
//! - [`budget`]: how many descriptors they may take;
//! - [`idle`]: when those without a connection are looked at again;
//! - [`told`]: what they and this one tell each other of their waiters;
//! - [`kin`]: those of our own user, when this process becomes another one;
//! - [`wakes`]: what they and this one wake each other by.

pub mod annex;
pub mod budget;
pub mod changes;
pub mod channel;
pub mod copy;
pub mod idle;
pub mod kin;
pub mod peers;
pub mod posts;
pub mod region;
pub mod ring;
mod told;
pub mod waiters;
pub mod wakes;
pub mod wide;
