//! smcr-proto: what the parts of smcr say to each other, and nothing that does I/O.
//!
//! No standard library, no unsafe code, no clock, no file descriptors: `handle_*` takes input,
//! `poll_*` gives output, time is an argument. The library (`preload`), the command line tool
//! (`admin`) and the tests stand on it.
//!
//! From the outside in:
//! - [`page`]: the page by which a process shows its sockets and counters to `smcrctl`;
//! - [`control`]: the page by which users and root steer running processes, and its policy;
//! - [`handshake`]: the socket options that mark a handshake with the SMC TCP option;
//! - [`reason`]: the numbered reasons why a connection is on TCP;
//! - [`register`]: what a socket's SO_MAX_PACING_RATE says besides a rate;
//! - [`rendezvous`]: the messages by which two processes of one host find and prove each other;
//! - [`cursor`]: arithmetic of the shared-memory rings, and the check of what a peer claims;
//! - [`smc`]: SMC-R, spoken between hosts over RDMA: messages and state machines;
//! - [`way_back`]: how two libsmcr leave a link for TCP.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod control;
pub mod cursor;
pub mod handshake;
pub mod page;
pub mod reason;
pub mod register;
pub mod rendezvous;
pub mod smc;
pub mod way_back;
