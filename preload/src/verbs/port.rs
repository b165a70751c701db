//! Which RoCE device, port and GID belong to an IPv4 address: as the kernel's SMC chooses for
//! version 2, from what /sys shows.
//!
//! A GID of type RoCE v2 that is v4-mapped and whose address has the TCP connection's source address in its
//! subnet; the GID of that very address before all others. Asked by the
//! drivers of the handshake.

use crate::sys::addresses::Addresses;
use crate::sys::{dir, fd};
use smcr_proto::smc::id::{Gid, Mac};
use std::cell::LazyCell;
use std::ffi::CString;

/// Where the kernel shows RDMA devices.
const ROOT: &str = "/sys/class/infiniband";
/// The same of those that a process may open.
const OPENED: &str = "/sys/class/infiniband_verbs";
/// GIDs of a port that are looked at.
const GIDS: u8 = 64;

/// A RoCE port, seen from one of its GIDs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// Name of the device.
    pub device: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Index of the GID.
    pub index: u8,
    /// The GID.
    pub gid: Gid,
    /// MAC of the network device below.
    pub mac: Mac,
}

/// Whether this machine shows any RDMA device at all (a few system calls).
pub fn any() -> bool {
    let mut found = false;
    let _ = dir::names(c"/sys/class/infiniband", |_| found = true);
    found
}

/// Whether a port of any has an address by which a link can be found.
pub fn has_address() -> bool {
    each(|port, _| Some(port)).is_some()
}

/// Whether a device can be opened still. One that is to be removed stays in sight elsewhere until its users have gone.
pub fn can_be_opened(device: &str) -> bool {
    let mut seen = false;
    let mut its = false;
    for name in names(OPENED) {
        seen = true;
        its |= read(&format!("{OPENED}/{name}/ibdev")).is_some_and(|d| d == device);
    }
    // Where nothing can be seen nothing is known.
    its || !seen && names(ROOT).is_empty()
}

/// The port for connections from `source`.
pub fn find(source: [u8; 4]) -> Option<Port> {
    // The kernel is asked only where the GIDs alone do not say it.
    let (mut near, all) = (None, LazyCell::new(Addresses::now));
    each(|port, address| {
        if address == source {
            return Some(port);
        }
        if near.is_none() && all.share_subnet(address, source) {
            near = Some(port);
        }
        None
    })
    .or(near)
}

/// A port of another device than this one's, or another one of it, for a second link: in the subnet of `near`, if that is
/// known, and by none of the GIDs in `tried`.
pub fn another(first: &Port, near: Option<[u8; 4]>, tried: &[Gid]) -> Option<Port> {
    let (mut same_device, all) = (None, LazyCell::new(Addresses::now));
    let found = each(|port, address| {
        let other = (&port.device, port.port) != (&first.device, first.port) && !tried.contains(&port.gid);
        if !other || near.is_some_and(|near| !all.share_subnet(address, near)) || !is_up(&port) {
            return None;
        }
        if port.device != first.device {
            return Some(port);
        }
        same_device.get_or_insert(port);
        None
    });
    found.or(same_device)
}

/// Goes through all ports and their GIDs of RoCE v2 with an IPv4 address until one is what is looked for.
fn each(mut look: impl FnMut(Port, [u8; 4]) -> Option<Port>) -> Option<Port> {
    for device in names(ROOT) {
        for port in names(&format!("{ROOT}/{device}/ports")).iter().filter_map(|p| p.parse().ok()) {
            for index in 0..GIDS {
                let Some((gid, netdev)) = gid(&device, port, index) else { continue };
                let (Some(address), Some(mac)) = (gid.ipv4(), mac(&netdev)) else { continue };
                let this = Port { device: device.clone(), port, index, gid, mac };
                if let Some(found) = look(this, address) {
                    return Some(found);
                }
            }
        }
    }
    None
}

fn is_up(port: &Port) -> bool {
    let state = read(&format!("{ROOT}/{}/ports/{}/state", port.device, port.port));
    state.is_some_and(|s| s.contains("ACTIVE"))
}

fn gid(device: &str, port: u8, index: u8) -> Option<(Gid, String)> {
    let base = format!("{ROOT}/{device}/ports/{port}");
    let text = read(&format!("{base}/gids/{index}"))?;
    let mut bytes = [0; 16];
    let mut nibbles = text.bytes().filter(|b| *b != b':').map(|b| (b as char).to_digit(16));
    for byte in &mut bytes {
        *byte = (nibbles.next()?? << 4 | nibbles.next()??) as u8;
    }
    let gid = Gid(bytes);
    gid.ipv4()?;
    if read(&format!("{base}/gid_attrs/types/{index}"))?.trim() != "RoCE v2" {
        return None;
    }
    Some((gid, read(&format!("{base}/gid_attrs/ndevs/{index}"))?))
}

fn mac(netdev: &str) -> Option<Mac> {
    let text = read(&format!("/sys/class/net/{netdev}/address"))?;
    let mut mac = Mac::default();
    let mut parts = text.split(':');
    for byte in &mut mac.0 {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    Some(mac)
}

fn read(path: &str) -> Option<String> {
    let path = CString::new(path).ok()?;
    let mut buf = [0; 256];
    let text = fd::read_file(&path, &mut buf).ok()?;
    let text = std::str::from_utf8(text).ok()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn names(path: &str) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(path) = CString::new(path) else { return found };
    let _ = dir::names(&path, |name| {
        if let Ok(name) = std::str::from_utf8(name) {
            found.push(name.to_owned());
        }
    });
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_devices_has_no_port() {
        // An address of the documentation range is nobody's, with or without devices.
        assert_eq!(find([192, 0, 2, 77]), None);
        let first = Port { device: "none".into(), port: 1, index: 0, gid: Gid::default(), mac: Mac::default() };
        assert_eq!(another(&first, Some([192, 0, 2, 77]), &[]), None);
    }
}
