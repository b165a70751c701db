//! The edges: what is refused, what is not answered, what comes and goes.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use smcr_bpf::abi::{ABI, LEVEL, MARK, VERDICT};
use smcr_bpf::{Enabled, Error, Pins, State, status};

use crate::World;
use crate::ends::*;
use crate::net::*;

pub fn enabling(world: &World) {
    let (cgroup, pins) = &world.ours;
    assert_eq!(pins.enable(cgroup).expect("enable again"), Enabled::Already);
    assert!(matches!(pins.enable(Path::new("/proc")), Err(Error::NotCgroup2(_))));
    let elsewhere = Pins::at(world.home.join("pins"));
    assert!(matches!(elsewhere.enable(cgroup), Err(Error::NoBpfFs(_))));
    let mine = Pins::at(world.pins.join("mine"));
    as_nobody(|| assert!(matches!(mine.enable(cgroup), Err(Error::Privilege))));
    let status = pins.status();
    assert_eq!(status.state, State::Enabled);
    assert_eq!(status.cgroup.as_deref(), Some(cgroup.as_path()));
    assert_eq!(status.here, Some(ABI));
    // As systemd mounts the file system: for root alone.
    let door = |mode| std::fs::set_permissions(&world.pins, std::fs::Permissions::from_mode(mode)).expect("chmod");
    door(0o700);
    let state = as_nobody(|| pins.status().state);
    door(0o755);
    assert_eq!(state, State::Unreadable);
}

pub fn cookies(_: &World) {
    sysctl("net/ipv4/tcp_syncookies", "2");
    let (client, accepted, wire) = pair(true, true);
    assert_eq!((client.verdict(), accepted.verdict()), (ACTIVE_ALONE, PASSIVE_ALONE));
    assert_eq!(wire, [SYN.to_vec(), NO.to_vec()]);
}

pub fn unmarked(_: &World) {
    let listener = listener(true, v4(0));
    assert_eq!(client(true, v4(listener.port())).verdict(), OURS_ACTIVE);
    assert_eq!(listener.accept().verdict(), OURS_PASSIVE);
    match listener.mark(false) {
        Ok(()) => {
            let client = client(true, v4(listener.port()));
            assert_eq!((client.verdict(), listener.accept().verdict()), (ACTIVE_ALONE, 0));
            assert_eq!(listener.marked() & 1, 0);
            // Whose SYN was answered before, or was not, is not known any more.
            assert_eq!(listener.mark(true).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        // Before 6.12 it cannot be done, and the caller is told.
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert_eq!(client(true, v4(listener.port())).verdict(), OURS_ACTIVE);
        }
    }
}

pub fn refusals(_: &World) {
    let plain = listener(false, v4(0));
    assert_eq!(plain.mark(true).unwrap_err().kind(), ErrorKind::PermissionDenied);
    let connected = client(false, v4(plain.port()));
    assert_eq!(connected.mark(true).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(plain.accept().verdict(), 0);
    // Unmarked in time: as if it had never been marked.
    let sock = Sock::tcp(v4(0));
    sock.mark(true).expect("mark");
    sock.mark(false).expect("unmark");
    assert_eq!(sock.marked(), u32::from(ABI) << 16);
    let tap = Tap::new();
    sock.connect(v4(plain.port())).expect("connect");
    assert_eq!(options(&tap), [NO, NO]);
}

pub fn child(_: &World) {
    let (client, accepted, _) = pair(true, true);
    assert_eq!(client.marked(), u32::from(ABI) << 16 | 1);
    assert_eq!(accepted.marked(), u32::from(ABI) << 16);
    accepted.mark(false).expect("unmarking what is not marked does nothing");
    assert_eq!(accepted.verdict(), OURS_PASSIVE);
}

pub fn twice(_: &World) {
    let (marked, plain) = (listener(true, v4(0)), listener(false, v4(0)));
    let sock = client(true, v4(marked.port()));
    assert_eq!(sock.verdict(), OURS_ACTIVE);
    sock.disconnect();
    sock.connect(v4(plain.port())).expect("connect again");
    assert_eq!(sock.verdict(), ACTIVE_ALONE);
    sock.disconnect();
    sock.mark(false).expect("unmark");
    sock.connect(v4(marked.port())).expect("connect a third time");
    assert_eq!(sock.verdict(), 0);
}

pub fn fast_open(world: &World) {
    sysctl("net/ipv4/tcp_fastopen", "3");
    let tap = Tap::new();
    let before = world.ours.1.status().counters.expect("counters").refused;
    let listener = listener(true, v4(0));
    listener.set(libc::IPPROTO_TCP, libc::TCP_FASTOPEN, 5).expect("TCP_FASTOPEN");
    let client = Sock::tcp(v4(0));
    client.mark(true).expect("mark");
    client.send_fast_open(v4(listener.port()));
    let accepted = listener.accept();
    assert_eq!((client.verdict(), accepted.verdict()), (ACTIVE_ALONE, PASSIVE_ALONE));
    assert_eq!(options(&tap), [SYN.to_vec(), NO.to_vec()]);
    assert_eq!(world.ours.1.status().counters.expect("counters").refused, before + 1);
}

/// A full backlog drops SYNs, as a path would that does not like the option.
pub fn third_syn(_: &World) {
    let full = listener(false, v4(0));
    full.listen(0);
    let _first = client(false, v4(full.port()));
    let tap = Tap::new();
    let sock = Sock::new(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    sock.mark(true).expect("mark");
    assert!(sock.connect(v4(full.port())).is_err());
    let mut seen = Vec::new();
    for _ in 0..200 {
        sock.wait(libc::POLLOUT, 50);
        seen.extend(tap.drain().into_iter().map(|packet| packet.option));
        if seen.len() >= 3 {
            break;
        }
    }
    assert_eq!(seen, [SYN.to_vec(), SYN.to_vec(), NO.to_vec()]);
}

pub fn not_ours(_: &World) {
    for (domain, kind) in [(libc::AF_INET, libc::SOCK_DGRAM), (libc::AF_UNIX, libc::SOCK_STREAM)] {
        let sock = Sock::new(domain, kind);
        assert!(sock.set(LEVEL, MARK, 1).is_err());
        assert!(sock.get(LEVEL, VERDICT).is_err());
    }
    let sock = Sock::tcp(v4(0));
    assert!(sock.get(LEVEL, 3).is_err() && sock.set(LEVEL, VERDICT, 1).is_err());
    sock.set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1).expect("other options work");
    assert_eq!(sock.get(libc::SOL_SOCKET, libc::SO_KEEPALIVE).expect("other options work"), 1);
}

pub fn disabling(world: &World) {
    let (cgroup, pins) = &world.ours;
    let counters = pins.status().counters.expect("counters");
    assert!(counters.connects >= 12 && counters.synacks >= 5, "{counters:?}");
    assert!(counters.cookies > 0 && counters.retries > 0 && counters.space == 0, "{counters:?}");
    println!("     {counters:?}");
    let listener = listener(true, v4(0));
    assert!(pins.disable().expect("disable"));
    assert!(!pins.disable().expect("disable again"));
    assert_eq!((pins.status().state, status().here), (State::Absent, None));
    assert!(Sock::tcp(v4(0)).mark(true).is_err());
    // A listener that was marked goes on, and does not answer.
    let tap = Tap::new();
    let plain = client(false, v4(listener.port()));
    assert_eq!(options(&tap), [NO, NO]);
    drop(plain);
    assert_eq!(pins.enable(cgroup).expect("enable anew"), Enabled::Now);
    assert_eq!(status().here, Some(ABI));
}
