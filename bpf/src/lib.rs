//! smcr-bpf: the SMC option in the TCP handshake, written by eBPF for sockets that ask for it.
//!
//! `smcrctl enable` calls [`enable`] once as root: three programs are loaded, attached to a cgroup and
//! pinned, and stay when the loader exits. From then on an unprivileged process of that cgroup marks a
//! socket before connect() or listen(), and learns after the handshake whether the peer has answered: the
//! private socket options of [`abi`]. [`disable`] removes all of it.
//!
//! The programs are C (`smcr.bpf.c`); their object is checked in and is part of this library, so that
//! neither clang nor a kernel header is needed to build or to run it. See `README.md` beside this crate.
#![deny(missing_docs)]

mod cgroup;
mod error;
mod install;
mod link;

pub use cgroup::root as cgroup_root;
pub use error::Error;
pub use install::{Counters, Enabled, Pins, Shape, State, Status};
/// The private socket options.
pub use smcr_proto::handshake as abi;

use std::path::Path;

/// Loads, attaches and pins the programs for all processes in and below `cgroup` (a directory of a
/// cgroup2 file system; [`cgroup_root`] gives the topmost). Needs CAP_BPF and CAP_NET_ADMIN.
pub fn enable(cgroup: &Path) -> Result<Enabled, Error> {
    Pins::default().enable(cgroup)
}

/// Detaches and removes the programs. `false`: there were none.
pub fn disable() -> Result<bool, Error> {
    Pins::default().disable()
}

/// What is installed, as far as this process may see it.
pub fn status() -> Status {
    Pins::default().status()
}
