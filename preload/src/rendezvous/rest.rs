//! What lies unread of a peer that has said its last word, when the descriptor goes to another program by exec: behind a
//! FIN nothing can be sent again. And what was taken up of one that has gone to TCP and was called in vain; and what came by a link that the
//! connection has left, or whose other end has closed.
//!
//! The program that becomes another one leaves these bytes to it in a file of its own, laid out as a region, under a number
//! that the library of the next program looks at when it starts. For that they are a ring whose producer has gone to TCP. They are
//! what was taken up to be sent again (`engine::take_up`), and what the ring holds behind that. More than fits into a ring
//! lies in the annex of the file, from where the ring is filled (`engine::refill`); FIONREAD counts no more than the ring.
//!
//! Where others go on with the connection as well, all of them have it, and each byte is for the first who reads it (`engine::heirs`).
//! Called by `table::forks` and `table::inherit`.

use super::handover::{has_ended, has_rest_of_link, is_stranded};
use super::{bequest, server};
use crate::engine::follow::{self, Source};
use crate::engine::{bell, bulk, heirs, here, linked, refill, resets, rouse, shadow};
use crate::family::lock::{CALL_MS, Marker};
use crate::family::sock::{Sock, aside, flag, medium, role, step};
use crate::family::{holders, process};
use crate::log;
use crate::sys::{Errno, Res, fd, mem, net};
use crate::transport::annex::{self, Annex};
use crate::transport::changes;
use crate::transport::region::{self, Dir, FILE_LEN, LEN, MAGIC, RING_MAX, RegionHeader, setup};
use smcr_proto::page::State;
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Where the first such file is; others below it. No program opens so many without noticing, and the library's own
/// descriptors are above 1023.
const FIRST: i32 = 1000;
const MOST: usize = 64;
/// Descriptors of one connection that the next program finds it under.
pub const NAMES: usize = 4;
/// The switch by which the stream leaves the ring.
const BACK: u32 = 2;

/// Files that this process has left: a bit for each.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Whether anything may be to be left. What a message ([`bequest`]) or posix_spawn has taken with it is another process's.
pub fn is_there(s: &Sock) -> bool {
    (s.rx_in_memory() || here::is_taken(s)) && !bequest::is_left(s) && s.aside.load(Relaxed) & aside::GIVEN == 0
}

/// Leaves what is unread, if its peer sends nothing again, to the program that finds the connection under these numbers; `goes_on`: who leaves it
/// has it as well.
pub fn leave(s: &Sock, sock: i32, names: [u16; NAMES], goes_on: bool) -> bool {
    if !is_last(s) {
        return false;
    }
    let Some(place) = (0..MOST).find(|n| !fd::is_open(FIRST - *n as i32)) else { return false };
    let kind = match goes_on || heirs::is_any(s) || holders::is_shared(s) {
        true if s.is_linked() || has_rest_of_link(s) => setup::COPY,
        true => setup::SHARE,
        false => setup::REST,
    };
    let left = write(s, sock, names, kind, |file| fd::dup3(file, FIRST - place as i32, 0).map(drop));
    log::debug!(target: "smcr::switch", fd = sock, kind, is_left = left == Ok(true), unread = s.rx.dir().map_or(0, |d| here::unread(s, d).len()),
        "what is unread is for the next program");
    match left {
        // In a vfork child they are the child's own, and the memory is not.
        Ok(true) if !process::is_vfork_child() => drop(LEFT.fetch_or(1 << place, Relaxed)),
        Ok(_) => {}
        Err(e) => log::warn!(target: "smcr::switch", fd = sock, errno = e.0, "what is unread does not go to the next program"),
    }
    has_gone(s);
    if kind == setup::SHARE {
        rouse::all(); // as in `here::begin`
    }
    left == Ok(true)
}

/// Whether its peer sends nothing again.
pub fn is_last(s: &Sock) -> bool {
    if s.is_linked() { linked::has_closed(s) } else { has_ended(s) || has_rest_of_link(s) || is_stranded(s) || heirs::is_any(s) }
}

/// Whether relatives have it as well, and its peer does not come for what was taken up: nobody knows who is to read that.
pub fn is_for_relatives(s: &Sock) -> bool {
    is_stranded(s) && holders::is_shared(s)
}

/// It was left, or is not: relatives that have it as well read it here.
pub fn has_gone(s: &Sock) {
    if is_for_relatives(s) {
        here::begin(s);
    }
}

/// It has gone to nobody: what can't come again is read here.
pub fn is_kept(s: &Sock) {
    if is_last(s) {
        here::begin(s);
    }
}

/// Nobody gets it, in memory or by TCP: who has the connection then is to see that, where an end would hide it.
pub fn lose(s: &Sock, sock: i32) {
    has_gone(s);
    let unread = |d: &Dir| s.rx_in_memory() && d.head.load(Acquire) != s.rx.cursor.load(Relaxed);
    if !s.is_linked() && has_ended(s) && !comes(s) && s.rx.dir().is_some_and(unread) {
        resets::reset_at_once(s, sock);
    } else {
        lose_taken(s, sock);
    }
}

/// As [`lose`] where the program may still read the ring. What was taken up is past that, and past the peer's TCP.
pub fn lose_taken(s: &Sock, sock: i32) {
    if bequest::is_left(s) {
        return;
    }
    if has_rest_of_link(s) || linked::has_closed(s) && !linked::has_nothing_left(s) {
        let _ = net::disconnect(sock); // so that the next call fails
    } else if here::is_taken(s) && (has_ended(s) || is_stranded(s) || heirs::is_any(s) && !holders::is_shared(s)) && !comes(s) {
        resets::reset_at_once(s, sock);
    }
}

/// The peer has been asked to send it again, and may do that: behind the end of TCP only what it had switched for.
fn comes(s: &Sock) -> bool {
    let Some(dir) = s.rx.dir().filter(|dir| follow::has_asked(dir)) else { return false };
    // The switch is marked before anything is sent, so also before the end: Acquire pairs with the Release in `engine::switch`.
    s.rx.end.load(Acquire) == 0 || follow::is_marked(s, dir)
}

/// Puts what is unread into a file of this kind ([`setup`]), which `keep` gets before it is closed. False: there is nothing.
pub fn write(s: &Sock, sock: i32, names: [u16; NAMES], kind: u32, keep: impl FnOnce(i32) -> Res<()>) -> Res<bool> {
    let marker = Marker::new();
    // Relatives look at it at any time, and what is not written is lost.
    let (Some(dir), Some(_held)) = (s.rx.dir(), s.rx.lock.take_within(&marker, CALL_MS)) else { return Ok(false) };
    let mut n = match follow::follow(s, sock, dir) {
        Source::Ring(n) => n,
        Source::Tcp(u64::MAX) => 0,
        _ => return Ok(false),
    };
    if kind == setup::SHARE {
        if !heirs::begin(s, sock, dir, n) {
            return Ok(false);
        }
        n = 0;
    }
    let write = || write_locked(s, sock, dir, n, names, kind, keep);
    if heirs::is_any(s) { heirs::alone(s, sock, dir, write).unwrap_or(Ok(false)) } else { write() }
}

fn write_locked(s: &Sock, sock: i32, dir: &Dir, n: usize, names: [u16; NAMES], kind: u32, keep: impl FnOnce(i32) -> Res<()>) -> Res<bool> {
    let Some((ring, _)) = bulk::rx_ring(s, dir).filter(|(_, size)| n <= *size) else { return Ok(false) };
    let is_shared = kind == setup::SHARE;
    // Where all count what was read, from the same byte on.
    let before = if is_shared { 0..here::taken(dir) } else { here::unread(s, dir) };
    let behind = refill::behind_ring(s, dir);
    let total = before.len() + n + behind.len();
    if total == 0 {
        return Ok(false);
    }
    if total > annex::LEN {
        return Err(Errno(libc::EFBIG));
    }
    let mut annex = None;
    if !before.is_empty() || !behind.is_empty() {
        annex = s.region().map(|r| Annex::map(r, dir)).transpose()?;
    }
    let cookie = net::cookie(sock)?;
    let file = mem::memfd(c"smcr-rest", FILE_LEN)?;
    let put = region::map(file).and_then(|p| {
        // SAFETY: a fresh mapping; all fields are atomics.
        let rest = unsafe { &*p };
        rest.magic.store(MAGIC, Relaxed);
        rest.server.store(kind, Relaxed);
        rest.nonce[0].store(cookie, Relaxed);
        rest.nonce[1].store(names.iter().fold(0, |all, name| all << 16 | u64::from(*name)), Relaxed);
        rest.dirs.iter().for_each(|d| d.size.store(RING_MAX as u32, Relaxed));
        let way = direction(s.role.load(Relaxed));
        let to = &rest.dirs[way];
        to.at_ring(BACK).store(if is_shared { 0 } else { total as u64 }, Relaxed);
        to.switch.store(BACK, Relaxed);
        let fill = |out: &mut [u8]| {
            let (first, out) = out.split_at_mut(before.len());
            let (second, third) = out.split_at_mut(n);
            if let Some(annex) = &mut annex {
                first.copy_from_slice(&annex.bytes()[before]);
                third.copy_from_slice(&annex.bytes()[behind]);
            }
            // SAFETY: room for as many bytes, which the ring holds.
            unsafe { ring.get(s.rx.cursor.load(Relaxed), second.as_mut_ptr(), n) };
        };
        let put = if is_shared {
            to.annex.store(total as u64, Relaxed);
            to.frozen.store(u64::from(s.shared.load(Relaxed)), Relaxed);
            Annex::map(rest, to).map(|mut annex| fill(&mut annex.bytes()[..total]))
        } else {
            refill::put(rest, way, total, fill)
        };
        mem::unmap(region::start_of(p), LEN);
        put.and_then(|()| keep(file))
    });
    fd::close(file);
    put?;
    // Whoever reads them now, the peer is to take the end of that for an orderly one.
    dir.tail.store(s.rx.cursor.load(Relaxed) + n as u64, Release);
    bell::drain(s, dir, sock);
    shadow::restore_receiving(s, sock);
    changes::note(s);
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

/// One of them. Closes the descriptor, unless that is no file of this kind.
pub fn open(file: i32) -> Res<Rest> {
    if !mem::is_safe_memfd(file, FILE_LEN) {
        return Err(Errno(libc::EPROTO)); // the program's own
    }
    let region = region::adopt(file)?;
    // SAFETY: a live mapping; all fields are atomics.
    let r = unsafe { &*region };
    if !setup::is_left(r.server.load(Relaxed)) {
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

    /// In place of the names that it had, for who has left it.
    pub fn mark(&self, word: u64) {
        // SAFETY: as in `open`.
        unsafe { &*self.region }.nonce[1].store(word, Relaxed);
    }

    /// The connection goes on from here: what was left, and then TCP for good, for this reason.
    pub fn take_over(self, s: &Sock, sock: i32, why: Reason) {
        s.role.store(self.own, Relaxed);
        s.cookie.store(self.cookie, Relaxed);
        s.process.store(process::index(), Relaxed);
        s.step.store(step::FAILED, Relaxed);
        s.note(why);
        s.set_state(State::Pinned);
        shadow::learn(s, sock);
        // SAFETY: as in `open`.
        let rest = unsafe { &*self.region };
        let kind = rest.server.load(Relaxed);
        let is_shared = kind == setup::SHARE;
        let passed = if is_shared { BACK } else { BACK - 1 };
        s.rx.switches.store(passed, Relaxed);
        s.rx_switches.store(passed, Relaxed);
        s.set(flag::CAREFUL | flag::PINNED);
        if kind != setup::REST {
            s.aside.store(aside::RELATIVE, Relaxed); // what it leaves unread makes no reset
        }
        server::attach(s, self.region, self.own);
        if is_shared {
            s.clear(flag::LINGER0); // one who has left it said so (`heirs::calm`)
            return here::is_left(s, rest.dirs[direction(self.own)].frozen.load(Relaxed) as u32);
        }
        s.rx_medium.store(medium::SHM, Release);
    }
}
