//! SMC-R: shared memory communication over RDMA, as RFC 7609 defines it and Linux speaks it.
//!
//! Without I/O: `handle_*` takes input, the commands of the program have plain names, `poll_*` gives
//! output, and the time is an argument. From a TCP connection to moving bytes:
//! - [`clc`]: the messages in the TCP stream, and [`handshake`], which agrees by them;
//! - [`llc`]: the messages of a link, and [`link`], which keeps a link group alive;
//! - [`cdc`]: the messages of a connection, and [`conn`], which says what to write where;
//! - [`immediate`]: what stands for such a message between two libsmcr;
//! - [`cursor`]: ring arithmetic, and the check of what a peer claims;
//! - [`id`], [`list`], [`error`], [`diagnosis`]: the small types that all of them use.
//!
//! The driver (RDMA transport of the library) owns the TCP socket, the queue pair and the memory.

pub mod cdc;
pub mod clc;
pub mod conn;
pub mod cursor;
pub mod diagnosis;
pub mod error;
mod fields;
pub mod handshake;
pub mod id;
pub mod immediate;
pub mod link;
pub mod list;
pub mod llc;

/// A point in time: the duration since an epoch of the caller's choice, never going back.
pub type Time = core::time::Duration;
