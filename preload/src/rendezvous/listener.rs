//! The Unix socket by which other processes reach this one, and the channels that came through it.
//!
//! Made at the first announcement, under an abstract name with a random number, so that nobody can
//! take the name beforehand. A forked child makes its own.

use super::server;
use crate::family::process;
use crate::sys::few::Brief;
use crate::sys::postponed::Work;
use crate::sys::{Errno, Res, Sysno, clock, fd, net, porter, proc};
use crate::transport::channel::{Read, read};
use crate::transport::peers::{self, Peer};
use smcr_proto::register::NAME_MASK;
use smcr_proto::rendezvous::channel_name;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

static FD: AtomicI32 = AtomicI32::new(-1);
static NAME: AtomicU64 = AtomicU64::new(0);
static MAKING: AtomicU32 = AtomicU32::new(0);
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);
static GAP_US: AtomicU64 = AtomicU64::new(20);
/// With a look that costs 4 us or less.
const MOST_US: u64 = 200;
static LOOKING: AtomicU32 = AtomicU32::new(0);
/// Channels taken in one look: who makes them faster does not hold the thread that looks.
const AT_ONCE: usize = 16;
/// So many of them that are refused are closed together.
const REFUSED: usize = 4;

/// The name number of this process's socket; makes the socket at the first call.
pub fn name() -> Res<u64> {
    match NAME.load(Acquire) {
        0 => make(),
        n => Ok(n),
    }
}

fn make() -> Res<u64> {
    if MAKING.swap(1, AcqRel) != 0 {
        return Err(Errno(libc::EAGAIN));
    }
    let made = try_make();
    match made {
        Ok((sock, name)) => {
            FD.store(sock, Relaxed);
            NAME.store(name, Release);
            process::count(smcr_proto::page::Counter::Announces, 0);
            Ok(name)
        }
        Err(e) => {
            MAKING.store(0, Release);
            Err(e)
        }
    }
}

fn try_make() -> Res<(i32, u64)> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let sock = net::socket(libc::AF_UNIX, kind, 0)?;
    for _ in 0..8 {
        let name = u64::from_ne_bytes(proc::random::<8>()?) & NAME_MASK;
        let (raw, len) = net::abstract_name(&channel_name(name)[..15]);
        if name != 0 && net::with_addr(Sysno::bind, sock, &raw[..len]).is_ok() {
            net::listen(sock, 512)?;
            return Ok((fd::park(sock), name));
        }
    }
    fd::close(sock);
    Err(Errno(libc::EADDRINUSE))
}

/// Something was announced: look soon.
pub fn expect() {
    GAP_US.store(20, Relaxed);
    NEXT_LOOK.store(0, Relaxed);
}

/// Takes new channels and their offers, when it is time to look again.
pub fn look() {
    let now = clock::ticks();
    // What a vfork child takes would be open in the child alone.
    if now < NEXT_LOOK.load(Relaxed) || process::is_vfork_child() || LOOKING.swap(1, Acquire) != 0 {
        return;
    }
    let _work = Work::begin(); // no handler jumps out of it
    let mut any = accept_some();
    for (_, p) in peers::all() {
        any |= read_offers(p);
    }
    // Nothing came: look less often, up to fifty times what a look costs (it grows with the peers). The
    // next announcement begins anew.
    let end = clock::ticks();
    let gap = if any { 20 } else { (GAP_US.load(Relaxed) * 2).min(20_000) };
    GAP_US.store(gap, Relaxed);
    let most = clock::ticks_of_us(MOST_US).max(end.wrapping_sub(now) * 50);
    NEXT_LOOK.store(end + clock::ticks_of_us(gap).min(most), Relaxed);
    LOOKING.store(0, Release);
}

fn accept_some() -> bool {
    let sock = FD.load(Relaxed);
    if sock < 0 {
        return false;
    }
    let mut any = false;
    let (mut refused, mut count) = ([const { None }; REFUSED], 0);
    for _ in 0..AT_ONCE {
        if porter::are_all_away() || porter::is_hurried() {
            break; // a stranger's channel could not be closed
        }
        // What is refused is open for a moment: the program may be at its last descriptor.
        let Ok(channel) = Brief::open(|| net::accept(sock)) else { break };
        any = true;
        // A socket that listens shows what those see who connect to it: us, as we were then.
        let who = net::peer_credentials(channel.fd()).ok().zip(net::peer_credentials(sock).ok());
        match who.filter(|(who, own)| peers::admits(who.uid, own.uid)) {
            Some((who, own)) => {
                let channel = fd::park(channel.keep());
                if peers::add(channel, 0, who, own.uid).is_none() {
                    porter::let_go(&[channel]);
                }
            }
            None => {
                refused[count] = Some(channel);
                count += 1;
                if count == REFUSED {
                    let_go(&mut refused);
                    count = 0;
                }
            }
        }
    }
    let_go(&mut refused);
    any
}

/// All of them by one porter.
fn let_go(refused: &mut [Option<Brief>; REFUSED]) {
    let fds = refused.each_ref().map(|channel| channel.as_ref().map_or(-1, Brief::fd));
    porter::let_go(&fds[..fds.iter().filter(|fd| **fd >= 0).count()]);
    refused.iter_mut().filter_map(Option::take).for_each(Brief::is_gone);
}

/// Reads what a peer says; a peer that has gone gives its base reference back.
fn read_offers(p: &'static Peer) -> bool {
    if !p.start_reading() {
        return false;
    }
    let read = read(p, super::heard);
    if read == Read::Gone {
        // Stays marked as being read: nobody reads a channel that has ended.
        p.lost();
    } else {
        p.stop_reading();
    }
    read != Read::Nothing
}

/// Whether other processes can reach this one.
pub fn is_open() -> bool {
    FD.load(Relaxed) >= 0
}

/// This process can be no other user than these now: who connects would take it for the one that made the socket. The next
/// announcement makes a new one. False: the socket is right, or there is none.
pub fn part(users: [u32; 3]) -> bool {
    let sock = FD.load(Relaxed);
    if sock < 0 || net::peer_credentials(sock).is_ok_and(|who| users.contains(&who.uid)) {
        return false;
    }
    FD.store(-1, Relaxed);
    NAME.store(0, Relaxed);
    MAKING.store(0, Release);
    porter::let_go(&[sock]);
    true
}

/// Whether `fd` is our socket.
pub fn owns(sock: i32) -> bool {
    FD.load(Relaxed) == sock
}

/// A forked child is another process: its announcements need its own name.
pub fn forget_in_child() {
    let sock = FD.swap(-1, Relaxed);
    if sock >= 0 {
        fd::close(sock);
    }
    NAME.store(0, Relaxed);
    MAKING.store(0, Relaxed);
    LOOKING.store(0, Relaxed);
    server::forget_in_child();
    super::pending::forget_in_child();
}

/// Names our descriptor here.
pub fn descriptors(add: &mut impl FnMut(i32)) {
    add(FD.load(Relaxed));
}

/// Our descriptor has another number now; false if it is not this one.
pub fn moved(old: i32, new: i32) -> bool {
    FD.compare_exchange(old, new, AcqRel, Relaxed).is_ok()
}
