//! What has come and was not taken, wherever it lies: MSG_PEEK across both media, and how much there is.
//!
//! A sender switches ahead of its receiver twice at most, so these are three stretches: TCP up to a switch, the ring up to the next
//! one, and TCP behind that. Between those of TCP stand the proof and doorbells, which are no payload. Where receiving is in memory
//! the first stretch is over. Called by `rx` with the receiving lock held, and by whoever asks how much there is without it.

use super::bufs::Bufs;
use super::{bulk, end, follow, heirs, here, proof, rx};
use crate::family::sock::{Sock, flag};
use crate::sys::{Errno, Res, fd, net};
use crate::transport::region::Dir;
use smcr_proto::cursor;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::*;

/// Bytes that FIONREAD shall report.
pub fn unread(s: &Sock, sock: i32) -> Res {
    let Some(dir) = s.rx.dir() else { return fd::unread(sock) };
    if heirs::is_any(s) {
        heirs::look_again(s, sock);
    }
    unread_behind(s, sock, dir).map(|n| n + here::left(s, dir))
}

/// As [`unread`], behind what is read [`here`] first.
fn unread_behind(s: &Sock, sock: i32, dir: &Dir) -> Res {
    let in_memory = s.rx_in_memory();
    if in_memory && ahead(s, dir) == 0 {
        return Ok(follow::in_ring(s, dir) as usize);
    }
    // Counted first: a switch is marked before the first byte that follows it is sent.
    let kernel = fd::unread(sock)? as u64;
    let ahead = ahead(s, dir);
    let to_ring = u32::from(!in_memory);
    if ahead < to_ring {
        return Ok(kernel as usize);
    }
    let before = if in_memory { 0 } else { at_kernel(s, dir, 1) };
    if kernel < before || !in_memory && !is_proved(s, sock, dir) {
        return Ok(kernel.min(before) as usize);
    }
    let ring = match ahead == to_ring {
        true => follow::in_ring(s, dir),
        false => follow::in_ring(s, dir).min(left_of_ring(s, dir, to_ring + 1)),
    };
    let behind = if ahead == to_ring { 0 } else { kernel.saturating_sub(at_kernel(s, dir, to_ring + 1)) };
    Ok((before + ring + behind) as usize)
}

/// Switches that were made and not followed; of a claim that can't be right, none.
fn ahead(s: &Sock, dir: &Dir) -> u32 {
    let ahead = dir.switch.load(Acquire).wrapping_sub(s.rx.switches.load(Relaxed));
    if ahead > 2 { 0 } else { ahead }
}

/// Bytes of the kernel's stream before the next switch, or the one behind it.
fn at_kernel(s: &Sock, dir: &Dir, next: u32) -> u64 {
    let at = dir.at_kernel(s.rx.switches.load(Relaxed).wrapping_add(next)).load(Relaxed);
    at.saturating_sub(s.rx.kernel.load(Relaxed))
}

/// The same of the ring.
fn left_of_ring(s: &Sock, dir: &Dir, next: u32) -> u64 {
    let at = dir.at_ring(s.rx.switches.load(Relaxed).wrapping_add(next)).load(Relaxed);
    at.saturating_sub(s.rx.cursor.load(Relaxed))
}

fn is_proved(s: &Sock, sock: i32, dir: &Dir) -> bool {
    !proof::is_due(s) || proof::look_ahead(s, sock, dir)
}

/// Where a call begins to look: SO_PEEK_OFF, which is kept here while receiving is in memory.
pub fn offset(s: &Sock, flags: i32) -> usize {
    let is_set = flags & libc::MSG_PEEK != 0 && s.has(flag::PEEK_OFF);
    if is_set { s.peek_off.load(Relaxed).saturating_sub(1) as usize } else { 0 }
}

/// As [`offset`], behind what was taken up and is read here (`here`).
pub fn offset_in_ring(s: &Sock, dir: &Dir, flags: i32) -> usize {
    match offset(s, flags) {
        0 => 0,
        n => n.saturating_sub(here::left(s, dir)),
    }
}

/// Whether the kernel keeps it, as it does while receiving is on TCP.
#[cold]
pub fn kernel_has_offset(sock: i32) -> bool {
    net::get_opt::<i32>(sock, libc::SOL_SOCKET, libc::SO_PEEK_OFF).is_ok_and(|off| off >= 0)
}

/// A PEEK has seen `n` bytes from there on.
pub fn move_offset(s: &Sock, n: usize) {
    if s.has(flag::PEEK_OFF) {
        s.peek_off.fetch_add(n as u32, Relaxed);
    }
}

/// `n` bytes were read: SO_PEEK_OFF counts from the next one on. A splice, which asks for [`rx::ANY`], leaves it.
pub fn has_read(s: &Sock, n: usize, flags: i32) {
    if s.has(flag::PEEK_OFF) && flags & rx::ANY == 0 {
        let off = s.peek_off.load(Relaxed).saturating_sub(1);
        s.peek_off.store(off.saturating_sub(n as u32) + 1, Relaxed);
    }
}

/// A PEEK that passed over, or took, `peeked` bytes of the ring and wants more, when the stream goes on in TCP behind it. One that has
/// something ends before an urgent byte, as the kernel's does.
pub fn behind_ring(s: &Sock, sock: i32, dir: &Dir, bufs: &Bufs, from: usize, peeked: usize, flags: i32) -> usize {
    let ring = left_of_ring(s, dir, 1) as usize;
    if ahead(s, dir) == 0 || peeked < ring {
        return 0;
    }
    let skip = (at_kernel(s, dir, 1) as usize).saturating_add(peeked - ring);
    if skip == 0 && from > 0 && fd::is_at_mark(sock) {
        return 0;
    }
    tcp(s, sock, skip, bufs, from, flags)
}

/// A PEEK that reached the switch: what the ring behind it holds, once the peer is proved, and TCP behind that.
pub fn behind_tcp(s: &Sock, sock: i32, dir: &Dir, bufs: &Bufs, from: usize, flags: i32) -> usize {
    if !is_proved(s, sock, dir) {
        return 0;
    }
    let goes_on = ahead(s, dir) == 2;
    let tail = s.rx.cursor.load(Relaxed);
    let head = dir.head.load(Acquire);
    let Some((ring, size)) = bulk::rx_ring(s, dir) else { return 0 };
    let Some(mut avail) = cursor::readable(head, tail, size) else { return 0 };
    if goes_on {
        avail = avail.min(left_of_ring(s, dir, 2) as usize);
    }
    let n = avail.min(bufs.len() - from);
    if flags & libc::MSG_TRUNC == 0 {
        let mut pos = tail;
        bufs.pieces(from, n, |p, len| {
            // SAFETY: the program's buffer, valid for writes.
            unsafe { ring.get(pos, p, len) };
            pos += len as u64;
        });
    }
    match goes_on && n == avail {
        true => n + tcp(s, sock, at_kernel(s, dir, 2) as usize, bufs, from + n, flags),
        false => n,
    }
}

/// What TCP holds behind `skip` bytes.
fn tcp(s: &Sock, sock: i32, skip: usize, bufs: &Bufs, from: usize, flags: i32) -> usize {
    // The kernel would begin where the program's offset is, and move that.
    if kernel_has_offset(sock) {
        return 0;
    }
    let mut done = 0;
    let peeked = bufs.with_parts(from, bufs.len() - from, |part, _| {
        let n = skipping(sock, skip + done, part, flags)?;
        done += n;
        Ok::<_, Errno>(n)
    });
    peeked.unwrap_or_else(|e| {
        end::took(s, e);
        0
    })
}

/// Where the kernel puts what is passed over: too large for the stack of a signal handler.
struct Rest(UnsafeCell<[u8; Rest::LEN]>);

impl Rest {
    const LEN: usize = 64 * 1024;
}

// SAFETY: nobody reads it, and the kernel alone writes, whatever several threads of it write at once.
unsafe impl Sync for Rest {}

static REST: Rest = Rest(UnsafeCell::new([0; Rest::LEN]));

/// How much the kernel's stream holds, also beyond an urgent mark that it stands at. MSG_TRUNC copies nothing (tcp(7)).
pub fn beyond_mark(sock: i32) -> Res {
    let rest = libc::iovec { iov_base: REST.0.get().cast(), iov_len: Rest::LEN };
    skipping(sock, 0, &[rest; 64], libc::MSG_TRUNC)
}

/// PEEK of what the kernel's stream holds behind `skip` bytes.
#[cold]
#[inline(never)]
pub fn skipping(sock: i32, skip: usize, parts: &[libc::iovec], flags: i32) -> Res {
    const PIECE: usize = Rest::LEN;
    const ENTRIES: usize = 144;
    let mut iov = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; ENTRIES];
    let pieces = skip.div_ceil(PIECE);
    if pieces + parts.len() > ENTRIES {
        return Ok(0); // more than a queue holds
    }
    for (i, v) in iov[..pieces].iter_mut().enumerate() {
        *v = libc::iovec { iov_base: REST.0.get().cast(), iov_len: PIECE.min(skip - i * PIECE) };
    }
    iov[pieces..pieces + parts.len()].copy_from_slice(parts);
    // SAFETY: an all-zero msghdr is valid.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = pieces + parts.len();
    let keep = libc::MSG_PEEK | libc::MSG_DONTWAIT | flags & libc::MSG_TRUNC;
    // SAFETY: the program's buffers, valid for writes, behind our own, of which one serves again and again.
    unsafe { net::recvmsg(sock, &mut msg, keep) }.map(|n| n.saturating_sub(skip))
}
