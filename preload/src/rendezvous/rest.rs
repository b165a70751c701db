//! What the ring holds of a peer that has said its last word, when the descriptor goes to another program by exec: behind a
//! FIN nothing can be sent again.
//!
//! The program that becomes another one leaves these bytes to it in a file of its own, laid out as a region, under a number
//! that the library of the next program looks at when it starts. For that they are a ring whose producer has gone to TCP.
//! Called by `table::forks` and `table::inherit`.

use super::handover::has_ended;
use super::server;
use crate::engine::follow::{self, Source};
use crate::engine::{bell, bulk, shadow};
use crate::family::lock::Marker;
use crate::family::process;
use crate::family::sock::{Sock, flag, medium, role, step};
use crate::log;
use crate::sys::{Errno, Res, fd, mem, net};
use crate::transport::region::{self, FILE_LEN, LEN, MAGIC, RING_MAX, RegionHeader, setup};
use smcr_proto::page::State;
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Where the first such file is; others below it. No program opens so many without noticing, and the library's own
/// descriptors are above 1023.
const FIRST: i32 = 1000;
const MOST: usize = 8;
/// Descriptors of one connection that the next program finds it under.
pub const NAMES: usize = 4;
/// The switch by which the stream leaves the ring.
const BACK: u32 = 2;

/// Files that this process has left: a bit for each.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Leaves what the ring holds, if its peer sends nothing again, to the program that finds the connection under these numbers.
pub fn leave(s: &Sock, sock: i32, names: [u16; NAMES]) {
    if s.is_linked() || !s.rx_in_memory() || !has_ended(s) {
        return;
    }
    let Some(place) = (0..MOST).find(|n| !fd::is_open(FIRST - *n as i32)) else { return };
    match write(s, sock, names, FIRST - place as i32) {
        // In a vfork child they are the child's own, and the memory is not.
        Ok(true) if !process::is_vfork_child() => drop(LEFT.fetch_or(1 << place, Relaxed)),
        Ok(_) => {}
        Err(e) => log::warn!(target: "smcr::switch", fd = sock, errno = e.0, "what is unread does not go to the next program"),
    }
}

fn write(s: &Sock, sock: i32, names: [u16; NAMES], place: i32) -> Res<bool> {
    let marker = Marker::new();
    let (Some(dir), Some(_held)) = (s.rx.dir(), s.rx.lock.try_take(&marker)) else { return Ok(false) };
    let Source::Ring(n) = follow::follow(s, sock, dir) else { return Ok(false) };
    let Some((ring, _)) = bulk::rx_ring(s, dir).filter(|(_, size)| (1..=*size).contains(&n)) else {
        return Ok(false);
    };
    let cookie = net::cookie(sock)?;
    let file = mem::memfd(c"smcr-rest", FILE_LEN)?;
    let put = mem::map_shared(file, LEN, true).and_then(|p| {
        let p = p.cast::<RegionHeader>();
        let way = direction(s.role.load(Relaxed));
        // SAFETY: a fresh mapping of LEN bytes; all fields are atomics.
        let rest = unsafe { &*p };
        rest.magic.store(MAGIC, Relaxed);
        rest.server.store(setup::REST, Relaxed);
        rest.nonce[0].store(cookie, Relaxed);
        rest.nonce[1].store(names.iter().fold(0, |all, name| all << 16 | u64::from(*name)), Relaxed);
        rest.dirs.iter().for_each(|d| d.size.store(RING_MAX as u32, Relaxed));
        let to = &rest.dirs[way];
        to.at_ring(BACK).store(n as u64, Relaxed);
        to.switch.store(BACK, Relaxed);
        // SAFETY: the ring of a fresh region, which is as large as any.
        unsafe { ring.get(s.rx.cursor.load(Relaxed), region::ring_of(p, way), n) };
        to.head.store(n as u64, Release);
        mem::unmap(p.cast(), LEN);
        fd::dup3(file, place, 0)
    });
    fd::close(file);
    put?;
    // Whoever reads them now, the peer is to take the end of that for an orderly one.
    dir.tail.store(s.rx.cursor.load(Relaxed) + n as u64, Release);
    bell::drain(s, dir, sock);
    shadow::restore_receiving(s, sock);
    Ok(true)
}

/// The direction in which an end with this role receives.
fn direction(own: u32) -> usize {
    usize::from(own == role::CLIENT)
}

/// exec failed: nobody takes it.
pub fn take_back() {
    let left = LEFT.swap(0, Relaxed);
    (0..MOST).filter(|n| left & 1 << n != 0).for_each(|n| fd::close(FIRST - n as i32));
}

/// What a program finds at its start.
pub struct Rest {
    region: *mut RegionHeader,
    /// Cookie of the connection.
    pub cookie: u64,
    /// Numbers that it had.
    pub names: [i32; NAMES],
    own: u32,
}

/// All that was left to this program. One system call where there is nothing.
pub fn found() -> impl Iterator<Item = Rest> {
    (0..MOST).map(|n| FIRST - n as i32).take_while(|file| fd::is_open(*file)).filter_map(|file| open(file).ok())
}

fn open(file: i32) -> Res<Rest> {
    if !mem::is_safe_memfd(file, FILE_LEN) {
        return Err(Errno(libc::EPROTO)); // the program's own
    }
    let region = region::adopt(file)?;
    // SAFETY: a live mapping; all fields are atomics.
    let r = unsafe { &*region };
    if r.server.load(Relaxed) != setup::REST {
        region::drop_mapping(region);
        return Err(Errno(libc::EPROTO));
    }
    let names = r.nonce[1].load(Relaxed).to_be_bytes();
    let own = if r.dirs[direction(role::CLIENT)].switch.load(Relaxed) == BACK { role::CLIENT } else { role::SERVER };
    Ok(Rest {
        region,
        cookie: r.nonce[0].load(Relaxed),
        names: std::array::from_fn(|i| i32::from(u16::from_be_bytes([names[2 * i], names[2 * i + 1]]))),
        own,
    })
}

impl Rest {
    /// Nobody has the connection any more.
    pub fn drop(self) {
        region::drop_mapping(self.region);
    }

    /// The connection goes on from here: what was left, and then TCP for good.
    pub fn take_over(self, s: &Sock, sock: i32) {
        s.role.store(self.own, Relaxed);
        s.cookie.store(self.cookie, Relaxed);
        s.process.store(process::index(), Relaxed);
        s.step.store(step::FAILED, Relaxed);
        s.note(Reason::Exec);
        s.set_state(State::Pinned);
        shadow::learn(s, sock);
        s.rx.switches.store(BACK - 1, Relaxed);
        s.rx_switches.store(BACK - 1, Relaxed);
        s.set(flag::CAREFUL | flag::PINNED);
        server::attach(s, self.region, self.own);
        s.rx_medium.store(medium::SHM, Release);
    }
}
