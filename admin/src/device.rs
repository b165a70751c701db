//! RDMA devices as the kernel shows them in /sys/class/infiniband: what of ibv_devinfo matters
//! here. Used by device and check.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cli::Json;
use crate::out::{self, Table};
use crate::paths::Places;

const CLASS: &str = "/sys/class/infiniband";

/// One port of a device.
#[derive(Serialize, Debug, PartialEq)]
pub struct Port {
    pub device: String,
    pub port: u32,
    pub net_devices: Vec<String>,
    pub state: String,
    pub kind: String,
    pub firmware: String,
    pub link_layer: String,
    pub rate: String,
    pub gids: Vec<Gid>,
}

/// An entry of the GID table that is in use.
#[derive(Serialize, Debug, PartialEq)]
pub struct Gid {
    pub index: u32,
    pub gid: String,
    pub kind: String,
    pub net_device: String,
}

pub fn run(places: &Places, args: &Json) -> anyhow::Result<()> {
    let ports = list(&places.of_host(CLASS));
    if args.json {
        return out::json(&ports);
    }
    if ports.is_empty() {
        return out::print("no RDMA devices\n");
    }
    let mut table = Table::new(&["Net-Dev", "IB-Dev", ">IB-P", "IB-State", "Type", "Link", "Rate", "GID", "GID-Type"]);
    for p in &ports {
        let row = |gid: &str, kind: &str| {
            vec![
                join(&p.net_devices),
                p.device.clone(),
                p.port.to_string(),
                p.state.clone(),
                p.kind.clone(),
                p.link_layer.clone(),
                p.rate.clone(),
                gid.to_string(),
                kind.to_string(),
            ]
        };
        if p.gids.is_empty() {
            table.row(row("-", "-"));
        }
        p.gids.iter().for_each(|g| table.row(row(&g.gid, &g.kind)));
    }
    out::print(&table.render())
}

fn join(words: &[String]) -> String {
    if words.is_empty() { "n/a".into() } else { words.join(",") }
}

/// The file by which programs open a device.
pub fn uverbs(places: &Places, device: &str) -> Option<PathBuf> {
    let class = places.of_host("/sys/class/infiniband_verbs");
    let is_its = |name: &String| text(&class.join(name).join("ibdev")) == device;
    let name = names(&class).into_iter().find(is_its)?;
    Some(places.of_host("/dev/infiniband").join(name))
}

impl Port {
    /// The GID that connections to other hosts can use, if the port is active and has one.
    pub fn address(&self) -> Option<&str> {
        let is_usable = |g: &&Gid| g.kind == "RoCE v2" && is_ipv4(&g.gid);
        let gid = self.gids.iter().find(is_usable)?;
        (self.state == "ACTIVE").then_some(gid.gid.as_str())
    }
}

/// Whether a GID is made of an IPv4 address.
fn is_ipv4(gid: &str) -> bool {
    gid.parse::<Ipv6Addr>().is_ok_and(|ip| ip.to_ipv4_mapped().is_some())
}

/// The ports of this machine. There is none where there is no directory.
pub fn of_machine(places: &Places) -> Vec<Port> {
    list(&places.of_host(CLASS))
}

fn list(class: &Path) -> Vec<Port> {
    let mut ports = Vec::new();
    for device in names(class) {
        let dir = class.join(&device);
        for number in names(&dir.join("ports")) {
            let Ok(port) = number.parse() else { continue };
            ports.push(read_port(&dir, &device, port));
        }
    }
    ports
}

fn read_port(device_dir: &Path, device: &str, port: u32) -> Port {
    let dir = device_dir.join("ports").join(port.to_string());
    let gids = gids(&dir);
    let mut net_devices: Vec<_> = gids.iter().map(|g| g.net_device.clone()).collect();
    net_devices.retain(|n| !n.is_empty());
    net_devices.extend(names(&device_dir.join("device/net")));
    net_devices.sort();
    net_devices.dedup();
    // "4: ACTIVE"
    let state = text(&dir.join("state"));
    let state = state.split(": ").last().unwrap_or_default().to_string();
    Port {
        device: device.to_string(),
        port,
        net_devices,
        state,
        kind: driver(device_dir, device),
        firmware: text(&device_dir.join("fw_ver")),
        link_layer: text(&dir.join("link_layer")),
        rate: text(&dir.join("rate")),
        gids,
    }
}

fn gids(dir: &Path) -> Vec<Gid> {
    let mut found = Vec::new();
    for name in names(&dir.join("gids")) {
        let gid = text(&dir.join("gids").join(&name));
        if gid.is_empty() || gid.bytes().all(|b| b == b'0' || b == b':') {
            continue;
        }
        let Ok(index) = name.parse() else { continue };
        found.push(Gid {
            index,
            gid,
            kind: text(&dir.join("gid_attrs/types").join(&name)),
            net_device: text(&dir.join("gid_attrs/ndevs").join(&name)),
        });
    }
    found.sort_by_key(|g| g.index);
    found
}

/// The kernel's driver; soft devices have none and are known by their names.
fn driver(dir: &Path, device: &str) -> String {
    let link = fs::read_link(dir.join("device/driver"));
    let name = link.ok().and_then(|l| Some(l.file_name()?.to_string_lossy().into_owned()));
    name.unwrap_or_else(|| device.trim_end_matches(|c: char| c.is_ascii_digit()).to_string())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let mut names: Vec<_> = entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A file of sysfs; unused entries of a GID table cannot be read.
fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("rxe0/ports/1/state", "4: ACTIVE\n");
        put("rxe0/ports/1/link_layer", "Ethernet\n");
        put("rxe0/ports/1/rate", "10 Gb/sec (1X)\n");
        put("rxe0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n");
        put("rxe0/ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        put("rxe0/ports/1/gid_attrs/types/0", "RoCE v2\n");
        put("rxe0/ports/1/gid_attrs/ndevs/0", "eth0\n");
        let ports = list(dir.path());
        assert_eq!(ports.len(), 1);
        let p = &ports[0];
        assert_eq!((p.state.as_str(), p.kind.as_str()), ("ACTIVE", "rxe"));
        assert_eq!(p.net_devices, ["eth0"]);
        assert_eq!(p.gids.len(), 1);
        assert_eq!(p.gids[0].kind, "RoCE v2");
        assert!(list(&dir.path().join("none")).is_empty());
    }
}
