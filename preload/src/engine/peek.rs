//! MSG_PEEK where the stream goes on in the other medium: behind the ring in TCP, behind TCP in the ring.
//!
//! Called by `rx` with the receiving lock held, for what one medium leaves of the program's buffers.

use super::bufs::Bufs;
use super::{bell, bulk, end, proof};
use crate::family::sock::Sock;
use crate::sys::{Res, net};
use crate::transport::region::Dir;
use smcr_proto::cursor;
use std::sync::atomic::Ordering::*;

/// A PEEK that wants more than the ring holds, when the stream goes on in TCP behind it.
pub fn behind_ring(s: &Sock, sock: i32, dir: &Dir, bufs: &Bufs, from: usize, peeked: usize) -> usize {
    let passed = s.rx.switches.load(Relaxed);
    let next = passed.wrapping_add(1);
    if dir.switch.load(Acquire) == passed
        || dir.at_ring(next).load(Relaxed) != s.rx.cursor.load(Relaxed) + peeked as u64
    {
        return 0;
    }
    bell::drain(s, dir, sock);
    if s.rx.kernel.load(Relaxed) != dir.at_kernel(next).load(Relaxed) {
        return 0;
    }
    tcp(sock, bufs, from, bufs.len() - from).unwrap_or_else(|e| {
        end::took(s, e);
        0
    })
}

fn tcp(sock: i32, bufs: &Bufs, from: usize, n: usize) -> Res {
    let mut first = (std::ptr::null_mut(), 0);
    bufs.pieces(from, n, |p, len| {
        if first.1 == 0 {
            first = (p, len);
        }
    });
    // SAFETY: the program's buffer, valid for writes.
    unsafe { net::recv(sock, first.0, first.1, libc::MSG_PEEK | libc::MSG_DONTWAIT) }
}

/// A PEEK that reached the switch: what the ring behind it holds, once the peer is proved.
pub fn behind_tcp(s: &Sock, sock: i32, dir: &Dir, bufs: &Bufs, from: usize) -> usize {
    if proof::is_due(s) && !proof::look_ahead(s, sock, dir) {
        return 0;
    }
    let tail = s.rx.cursor.load(Relaxed);
    let head = dir.head.load(Acquire);
    let Some((ring, size)) = bulk::rx_ring(s, dir) else { return 0 };
    let Some(avail) = cursor::readable(head, tail, size) else { return 0 };
    let n = avail.min(bufs.len() - from);
    let mut pos = tail;
    bufs.pieces(from, n, |p, len| {
        // SAFETY: the program's buffer, valid for writes.
        unsafe { ring.get(pos, p, len) };
        pos += len as u64;
    });
    n
}
