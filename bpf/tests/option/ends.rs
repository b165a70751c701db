//! Who learns what: each kind of client against each kind of server, and what the packets carried.

use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::mount::{MsFlags, mount, umount};
use smcr_bpf::abi::{Peer, Verdict};

use crate::World;
use crate::net::*;

pub const SYN: [u8; 8] = [254, 8, 0xe2, 0xd4, 0xc3, 0xd9, 0x51, 1];
pub const SYN_ACK: [u8; 8] = [254, 8, 0xe2, 0xd4, 0xc3, 0xd9, 0xae, 1];
pub const SHORT: [u8; 6] = [254, 6, 0xe2, 0xd4, 0xc3, 0xd9];
pub const NO: [u8; 0] = [];

/// Verdicts, spelt out.
pub const OURS_ACTIVE: u32 = 0x11f;
pub const OURS_PASSIVE: u32 = 0x117;
pub const SMC_ACTIVE: u32 = 0x0f;
pub const SMC_PASSIVE: u32 = 0x07;
pub const ACTIVE_ALONE: u32 = 0x0d;
pub const PASSIVE_ALONE: u32 = 0x01;

pub fn listener(marked: bool, address: SocketAddr) -> Sock {
    let sock = Sock::tcp(address);
    sock.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).expect("SO_REUSEPORT");
    if marked {
        sock.mark(true).expect("mark the listener");
    }
    sock.bind(address);
    sock.listen(16);
    sock
}

pub fn client(marked: bool, address: SocketAddr) -> Sock {
    let sock = Sock::tcp(address);
    if marked {
        sock.mark(true).expect("mark the client");
    }
    sock.connect(address).expect("connect");
    sock
}

/// Client, accepted socket, and what the SYN and the SYN-ACK carried.
pub fn pair(server: bool, by_client: bool) -> (Sock, Sock, [Vec<u8>; 2]) {
    let tap = Tap::new();
    let listener = listener(server, v4(0));
    let client = client(by_client, v4(listener.port()));
    let accepted = listener.accept();
    (client, accepted, options(&tap))
}

pub fn options(tap: &Tap) -> [Vec<u8>; 2] {
    let seen = tap.drain();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(!seen[0].answer && seen[1].answer, "{seen:?}");
    [seen[0].option.clone(), seen[1].option.clone()]
}

pub fn both(_: &World) {
    let (client, accepted, wire) = pair(true, true);
    assert_eq!((client.verdict(), accepted.verdict()), (OURS_ACTIVE, OURS_PASSIVE));
    assert_eq!(wire, [SYN.to_vec(), SYN_ACK.to_vec()]);
    assert_eq!(Verdict(client.verdict()).peer(), Some(Peer::Ours { version: 1 }));
}

pub fn plain_server(_: &World) {
    let (client, accepted, wire) = pair(false, true);
    assert_eq!((client.verdict(), accepted.verdict()), (ACTIVE_ALONE, 0));
    assert_eq!(wire, [SYN.to_vec(), NO.to_vec()]);
}

pub fn plain_client(_: &World) {
    let (client, accepted, wire) = pair(true, false);
    assert_eq!((client.verdict(), accepted.verdict()), (0, PASSIVE_ALONE));
    assert_eq!(wire, [NO, NO]);
}

pub fn neither(_: &World) {
    let (client, accepted, wire) = pair(false, false);
    assert_eq!((client.verdict(), accepted.verdict()), (0, 0));
    assert_eq!(wire, [NO, NO]);
}

pub fn ipv6(_: &World) {
    let tap = Tap::new();
    let dual = listener(true, (Ipv6Addr::UNSPECIFIED, 0).into());
    for address in [v6(dual.port()), v4(dual.port())] {
        let client = client(true, address);
        let accepted = dual.accept();
        assert_eq!((client.verdict(), accepted.verdict()), (OURS_ACTIVE, OURS_PASSIVE), "{address}");
        assert_eq!(options(&tap), [SYN.to_vec(), SYN_ACK.to_vec()], "{address}");
    }
    let plain = client(true, v6(listener(false, v6(0)).port()));
    assert_eq!(plain.verdict(), ACTIVE_ALONE);
}

pub fn non_blocking(_: &World) {
    let listener = listener(true, v4(0));
    let client = Sock::new(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    client.mark(true).expect("mark");
    let begun = client.connect(v4(listener.port()));
    assert_eq!(begun.map_err(|e| e.raw_os_error()), Err(Some(libc::EINPROGRESS)));
    assert!(client.wait(libc::POLLOUT, 5_000));
    assert_eq!((client.verdict(), listener.accept().verdict()), (OURS_ACTIVE, OURS_PASSIVE));
}

pub fn veth(_: &World) {
    let here = File::open("/proc/self/ns/net").expect("open the namespace");
    let there = new_namespace();
    switch_to(&here);
    // The peer's namespace by the descriptor that is open here.
    let path = format!("/proc/{}/fd/{}", std::process::id(), there.as_raw_fd());
    let name = format!("smcr-test-{}", std::process::id());
    let alias = Path::new("/run/netns").join(&name);
    fs::create_dir_all("/run/netns").expect("create /run/netns");
    fs::write(&alias, "").expect("name the namespace");
    mount(Some(path.as_str()), &alias, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bind");
    ip(&format!("link add v0 type veth peer name v1 netns {name}"));
    umount(&alias).expect("umount");
    fs::remove_file(&alias).expect("remove the name");
    ip("addr add 192.0.2.1/24 dev v0");
    ip("link set v0 up");
    switch_to(&there);
    ip("addr add 192.0.2.2/24 dev v1");
    ip("link set v1 up");
    let address = |port| SocketAddr::from((Ipv4Addr::new(192, 0, 2, 2), port));
    for (server, verdicts) in [(true, (OURS_ACTIVE, OURS_PASSIVE)), (false, (ACTIVE_ALONE, 0))] {
        let listener = listener(server, address(0));
        switch_to(&here);
        let client = client(true, address(listener.port()));
        assert_eq!((client.verdict(), listener.accept().verdict()), verdicts);
        switch_to(&there);
    }
}

pub fn reuseport(_: &World) {
    let marked = listener(true, v4(0));
    let plain = listener(false, v4(marked.port()));
    let mut hits = [0; 2];
    for _ in 0..24 {
        let client = client(true, v4(marked.port()));
        let (accepted, both) = if marked.wait(libc::POLLIN, 0) { (marked.accept(), true) } else { (plain.accept(), false) };
        let expected = if both { (OURS_ACTIVE, OURS_PASSIVE) } else { (ACTIVE_ALONE, 0) };
        assert_eq!((client.verdict(), accepted.verdict()), expected);
        hits[usize::from(both)] += 1;
    }
    assert!(hits[0] > 0 && hits[1] > 0, "{hits:?}");
}

pub fn other_server(world: &World) {
    let tap = Tap::new();
    enter(&world.kernel.0);
    let listener = listener(true, v4(0));
    enter(&world.ours.0);
    let client = client(true, v4(listener.port()));
    assert_eq!(client.verdict(), SMC_ACTIVE);
    assert_eq!(Verdict(client.verdict()).peer(), Some(Peer::Smc));
    assert_eq!(options(&tap), [SYN.to_vec(), SHORT.to_vec()]);
}

pub fn other_client(world: &World) {
    let tap = Tap::new();
    let listener = listener(true, v4(0));
    enter(&world.kernel.0);
    let client = client(true, v4(listener.port()));
    let accepted = listener.accept();
    assert_eq!((client.verdict(), accepted.verdict()), (SMC_ACTIVE, SMC_PASSIVE));
    assert_eq!(options(&tap), [SHORT.to_vec(), SHORT.to_vec()]);
}

/// The independent implementation, where the kernel has it (CONFIG_SMC).
pub fn kernel_smc(_: &World) {
    const AF_SMC: i32 = 43;
    let Some(server) = Sock::try_new(AF_SMC, libc::SOCK_STREAM) else {
        return println!("     (this kernel has no SMC)");
    };
    let tap = Tap::new();
    server.bind(v4(0));
    server.listen(4);
    let to_kernel = client(true, v4(server.port()));
    assert_eq!(options(&tap), [SYN.to_vec(), SHORT.to_vec()]);
    assert_eq!(to_kernel.verdict(), SMC_ACTIVE);

    let listener = listener(true, v4(0));
    let from_kernel = Sock::new(AF_SMC, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    let _in_progress = from_kernel.connect(v4(listener.port()));
    let accepted = listener.accept();
    assert_eq!(options(&tap), [SHORT.to_vec(), SHORT.to_vec()]);
    assert_eq!(accepted.verdict(), SMC_PASSIVE);
    // As the verdict says, it speaks first: a CLC message, which begins with the magic.
    assert!(accepted.wait(libc::POLLIN, 10_000));
    let first = accepted.peek4();
    assert!(first == [0xe2, 0xd4, 0xc3, 0xd9] || first == [0xe2, 0xd4, 0xc3, 0xc4], "{first:02x?}");
}

pub fn echo(world: &World) {
    let tap = Tap::new();
    let before = world.ours.1.status().counters.expect("counters").echoes;
    enter(&world.echo.0);
    let listener = listener(true, v4(0));
    enter(&world.ours.0);
    let client = client(true, v4(listener.port()));
    assert_eq!(options(&tap), [SYN.to_vec(), SYN.to_vec()]);
    assert_eq!(client.verdict(), ACTIVE_ALONE);
    assert_eq!(world.ours.1.status().counters.expect("counters").echoes, before + 1);
}
