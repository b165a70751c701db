//! SMC-R links: the other end of a ring, where that is another host.
//!
//! A connection over RDMA uses the engine's record, directions and rings as one over shared memory does;
//! what there is the peer process is here the link: it writes what the program has put into the sending
//! ring into the peer's memory and says so by a CDC message, and when a CDC message arrives it moves
//! the cursors of the record and rings this process's own waiters. Two words of each direction
//! ([`crate::layout::word::LINK`]) bring the engine here; where no link is used, nothing does.
//!
//! - [`lock`]: the one lock of all of it; `kick` to send;
//! - [`state`]: everything; `arrive`: `poll` to receive, `tick` for time; `awake`: whether this process stood still;
//! - [`cover`]: who listens to the completion channel;
//! - [`group`]: a link group: its links ([`one`]: a queue pair, [`patience`]: its completions), LLC machine, rings; [`admit`]: who may join it; [`second`]: its second link; [`failover`]:
//!   what happens when one of two dies; [`farewell`]: its end;
//! - [`slot`]: a connection, [`line`] who sends next, [`pieces`] what it writes where, [`nudge`] what a kernel is given to read, [`heard`] what it hears; [`ending`]: when a kernel's
//!   end is shown; [`leave`]: how it leaves for TCP; [`below`]: what TCP is told of its end; [`parting`]: the end of the process;
//! - [`pool`]: registered memory; [`show`]: what smcrctl is shown;
//! - [`wake`]: this process's own waiters;
//! - `forge`: a hostile peer, and `rig`: links without a card, for tests alone.

pub mod admit;
mod arrive;
mod awake;
mod below;
mod calm;
pub mod cover;
mod ending;
mod failover;
mod farewell;
#[cfg(feature = "faults")]
pub mod forge;
pub mod group;
mod heard;
pub mod leave;
mod line;
pub mod lock;
mod nudge;
pub mod one;
pub mod parting;
mod patience;
mod pieces;
pub mod pool;
#[cfg(test)]
pub(crate) mod rig;
mod second;
mod show;
pub mod slot;
pub mod state;
mod urgent;
pub mod wake;
