//! RDMA verbs: libibverbs loaded when it is first needed, and the few objects that SMC-R uses.
//!
//! Knows no sockets and no protocol. `link` puts link groups together from these parts:
//! - [`abi`]: the C interface of libibverbs;
//! - [`load`]: finding it (dlopen; the library has no DT_NEEDED on it);
//! - [`port`]: which device, port and GID belong to an address, read from /sys;
//! - [`device`]: an open device with its completion queues;
//! - [`domain`]: what one link reaches there: protection domain, shared receive queue;
//! - [`fit`]: whether it is worth trying;
//! - [`qp`]: one queue pair;
//! - [`uevent`]: hearing of devices that come and go.

pub mod abi;
pub mod device;
pub mod domain;
pub mod fit;
pub mod load;
pub mod port;
pub mod qp;
pub mod uevent;
