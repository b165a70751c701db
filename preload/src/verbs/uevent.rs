//! Hearing of RDMA devices that come and go: the kernel's own messages of its device tree.
//!
//! A driver that cannot take a device away from its users (soft RoCE) waits until they have closed it, and says so nowhere else. Opened
//! with the first device; listened to by the service thread.

use crate::sys::{fd, net};
use std::sync::atomic::{AtomicI32, Ordering::*};

/// The socket.
static SOCKET: AtomicI32 = AtomicI32::new(-1);
/// NETLINK_KOBJECT_UEVENT, and the group in which the kernel itself speaks.
const PROTOCOL: i32 = 15;
const KERNEL: u32 = 1;

/// What has been heard of RDMA devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Heard {
    /// One has gone, or is to go.
    pub removed: bool,
    /// One has come.
    pub added: bool,
}

/// Begins to listen, once. Where it is not allowed nothing is heard.
pub fn open() {
    if SOCKET.load(Relaxed) >= 0 {
        return;
    }
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let Ok(socket) = net::socket(libc::AF_NETLINK, kind, PROTOCOL) else { return };
    // struct sockaddr_nl: family, a gap, the port (any), the groups.
    let mut address = [0; 12];
    address[..2].copy_from_slice(&(libc::AF_NETLINK as u16).to_ne_bytes());
    address[8..].copy_from_slice(&KERNEL.to_ne_bytes());
    if net::with_addr(crate::sys::Sysno::bind, socket, &address).is_err() {
        return fd::close(socket);
    }
    SOCKET.store(fd::park(socket), Release);
}

/// The descriptor, if there is one.
pub fn descriptor() -> Option<i32> {
    Some(SOCKET.load(Acquire)).filter(|s| *s >= 0)
}

/// A descriptor has another number now; true if it is this one.
pub fn moved(old: i32, new: i32) -> bool {
    SOCKET.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
}

/// A forked child listens anew when it opens a device: this one is its parent's.
pub fn forget_in_child() {
    let socket = SOCKET.swap(-1, Relaxed);
    if socket >= 0 {
        fd::close(socket);
    }
}

/// Takes all that has come.
pub fn take() -> Heard {
    let mut heard = Heard::default();
    let Some(socket) = descriptor() else { return heard };
    let mut buf = [0; 8192];
    loop {
        match net::recv_slice(socket, &mut buf, libc::MSG_DONTWAIT) {
            Ok(n) => {
                let said = read(&buf[..n]);
                heard = Heard { removed: heard.removed | said.removed, added: heard.added | said.added };
            }
            // So much has come that some was lost: what there is has to be looked at.
            Err(e) if e.0 == libc::ENOBUFS => heard = Heard { removed: true, added: true },
            Err(_) => return heard,
        }
    }
}

/// One message: "action@path", then lines of which one names the subsystem. Another process may send some, too: what they
/// say is looked up.
fn read(message: &[u8]) -> Heard {
    let mut lines = message.split(|b| *b == 0);
    let action = lines.next().unwrap_or_default();
    let ours = lines.any(|line| line == b"SUBSYSTEM=infiniband_verbs" || line == b"SUBSYSTEM=infiniband");
    Heard { removed: ours && action.starts_with(b"remove@"), added: ours && action.starts_with(b"add@") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rdma_devices_matter() {
        let said = |text: &[u8]| {
            let heard = read(text);
            (heard.removed, heard.added)
        };
        assert_eq!(said(b"remove@/devices/x\0ACTION=remove\0SUBSYSTEM=infiniband_verbs\0SEQNUM=7\0"), (true, false));
        assert_eq!(said(b"add@/devices/x\0SUBSYSTEM=infiniband\0"), (false, true));
        assert_eq!(said(b"change@/devices/x\0SUBSYSTEM=infiniband\0"), (false, false));
        assert_eq!(said(b"remove@/devices/x\0SUBSYSTEM=net\0"), (false, false));
        assert_eq!(said(b"libudev\0\xfe\xed"), (false, false));
        assert_eq!(said(b""), (false, false));
    }
}
