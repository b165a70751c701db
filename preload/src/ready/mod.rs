//! Readiness: epoll, poll and select over sockets in memory, on TCP, and all other descriptors.
//!
//! The kernel's own registrations stay: they wake for TCP, for doorbells and for waiters that the
//! library never sees. On top of them `table::set` keeps what a hooked epoll set knows of its members,
//! [`ctl`] and [`wait`] are epoll_ctl and epoll_wait ([`look`] finds the events, [`keep`] those that are the kernel's, [`sleep`] sleeps), [`poll`] and [`select`] their elders ([`early`]: before any of theirs is served), and
//! [`level`] says what is ready now, for all of them; [`stand_in`] shows who waits for a set itself what lies in memory; [`ahead`] asks for what they will look at, and [`posted`] hears
//! of those that are not looked at.

mod ahead;
pub mod ctl;
mod early;
pub mod keep;
pub mod leave;
pub mod level;
pub mod look;
pub mod poll;
mod polled;
mod posted;
mod prepare;
mod readers;
pub mod ring;
pub mod select;
pub mod sleep;
mod stand_in;
mod strays;
pub mod wait;
