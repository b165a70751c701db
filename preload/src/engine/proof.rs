//! The proof in the stream: 16 bytes behind the connecting side's payload, at its first switch.
//!
//! They are the accepting side's nonce, which only the process at the other end of this very
//! connection can put there. `switch` sends them, `follow` takes them.

use super::{count, end, peek, signals};
use super::follow::payload_left;
use crate::family::process;
use crate::family::sock::{Sock, role, step};
use crate::fault::{self, Step as Fault};
use crate::sys::{Errno, clock, net};
use crate::transport::region::{Dir, setup};
use smcr_proto::page::Counter;
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// Bytes of proof in the stream.
pub const PROOF: u64 = 16;
/// How long a part of the proof may stay alone.
const PATIENCE_US: u64 = 2_000_000;

pub fn send(s: &Sock, sock: i32) -> Result<(), Errno> {
    let bytes = nonce_bytes(s);
    let mut sent = 0;
    while sent < bytes.len() {
        match net::send_slice(sock, &bytes[sent..], libc::MSG_DONTWAIT) {
            Ok(n) => {
                sent += n;
                s.tx.kernel.fetch_add(n as u64, Relaxed);
            }
            Err(e) if sent == 0 && e.0 != libc::EINTR => {
                end::took(s, e);
                return Err(e);
            }
            // Cut in the middle: the rest must follow, the stream has no other way.
            Err(e) if e.0 == libc::EAGAIN || e.0 == libc::EINTR => {
                let _ = crate::sys::fd::poll_now(sock, libc::POLLOUT);
                crate::sys::proc::yield_now();
            }
            Err(e) => {
                end::took(s, e); // the connection is dead
                break;
            }
        }
    }
    Ok(())
}

/// Whether the accepting side still waits for the proof in the stream.
pub fn is_due(s: &Sock) -> bool {
    stands_in_stream(s) && s.step.load(Relaxed) != step::PROVED
}

/// From here on the connecting side can't begin. False: it has, or is about to.
pub fn refuse(s: &Sock) -> bool {
    !is_due(s)
        || s.region().is_none_or(|r| {
            let seen = r.server.compare_exchange(setup::NONCE, setup::REFUSED, AcqRel, Acquire);
            seen.is_ok() || seen == Err(setup::REFUSED)
        })
}

/// Whether the proof's bytes are still in the TCP stream.
pub fn stands_in_stream(s: &Sock) -> bool {
    s.role.load(Relaxed) != role::CLIENT && s.rx.switches.load(Relaxed) == 0
}

/// Looks for the proof behind payload that the program has not taken yet; true if it is there and
/// right.
pub fn look_ahead(s: &Sock, sock: i32, dir: &Dir) -> bool {
    if dir.switch.load(Acquire) == 0 {
        return false;
    }
    let mut bytes = [0u8; PROOF as usize];
    let part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let got = peek::skipping(sock, payload_left(s, dir).unwrap_or(0) as usize, &[part], 0);
    if let Err(e) = got {
        end::took(s, e);
    }
    let right = got == Ok(bytes.len()) && bytes == nonce_bytes(s);
    if right {
        s.step.store(step::PROVED, Release);
        if let Some(r) = s.region() {
            r.server.store(setup::PROVED, Release);
        }
    }
    right
}

fn nonce_bytes(s: &Sock) -> [u8; PROOF as usize] {
    let mut bytes = [0u8; PROOF as usize];
    bytes[..8].copy_from_slice(&s.nonce[0].load(Relaxed).to_le_bytes());
    bytes[8..].copy_from_slice(&s.nonce[1].load(Relaxed).to_le_bytes());
    bytes
}

/// What stands where the proof must be.
pub enum Proof {
    /// The proof; it was taken.
    Right,
    /// Not all of it yet.
    Missing,
    /// Something else.
    Wrong,
}

/// The proof is put into the stream by one call and comes at once. A part of it that stays a part is the
/// payload of somebody who was named by a stranger and happens to begin like the nonce.
fn waits_too_long(s: &Sock, n: usize) -> bool {
    if n == 0 {
        return false; // nothing is withheld
    }
    let now = clock::ticks();
    let since = s.proof_since.load(Relaxed);
    if since == 0 {
        s.proof_since.store(now.max(1), Relaxed);
        return false;
    }
    now.wrapping_sub(since) > clock::ticks_of_us(PATIENCE_US)
}

/// Looks at the 16 bytes without taking them: a requester that is not the other end of this
/// connection must not cost a byte of the real one's payload.
pub fn take(s: &Sock, sock: i32) -> Proof {
    let want = nonce_bytes(s);
    let mut got = [0u8; PROOF as usize];
    let n = match net::recv_slice(sock, &mut got, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(n) => n,
        Err(e) => {
            end::took(s, e);
            return Proof::Missing;
        }
    };
    if got[..n] != want[..n] {
        process::count(Counter::ProofFailures, 1);
        s.note(Reason::StreamProofFailed);
        return Proof::Wrong;
    }
    if n < want.len() {
        return if waits_too_long(s, n) { Proof::Wrong } else { Proof::Missing };
    }
    // A handler that jumps out in between would leave it taken and not proved.
    signals::quietly(|| match net::recv_slice(sock, &mut got, libc::MSG_DONTWAIT) {
        Ok(n) if n as u64 == PROOF => {
            count::took(s, PROOF);
            fault::pass(Fault::ProofTaken);
            s.step.store(step::PROVED, Release);
            if let Some(r) = s.region() {
                r.server.store(setup::PROVED, Release);
            }
            Proof::Right
        }
        _ => Proof::Missing,
    })
}
