//! The proof in the stream: 16 bytes behind the connecting side's payload, at its first switch.
//!
//! They are the accepting side's nonce, which only the process at the other end of this very
//! connection can put there. `switch` sends them, `follow` takes them.

use super::follow::payload_left;
use super::{count, end, kernel, offer, peek, resets, signals, window};
use crate::family::process;
use crate::family::sock::{Sock, flag, role, step};
use crate::fault::{self, Step as Fault};
use crate::log;
use crate::sys::{Errno, Res, clock, fd, net, proc};
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
                let _ = fd::poll_now(sock, libc::POLLOUT);
                proc::yield_now();
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
    stands_in_stream(s) && s.step.load(Relaxed) != step::PROVED && !end::was_ours(s)
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

/// What the peer claims of its first switch can't be right: plain TCP. If it takes its mark back it can't begin again, which nobody
/// here would see.
pub fn has_failed(s: &Sock) {
    if let Some(r) = s.region() {
        r.server.store(setup::REFUSED, Release);
    }
    offer::abandon(s, Reason::StreamProofFailed);
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
    /// The proof.
    Right,
    /// Not all of it yet.
    Missing,
    /// Something else.
    Wrong,
}

/// So many bytes like those of the nonce are no payload: as good as nobody's begins like that.
const SURE: usize = 8;

/// The proof is put into the stream by one call and comes at once. A short part of it that stays a part is the
/// payload of somebody who was named by a stranger and happens to begin like the nonce; of a long one nobody knows what
/// comes behind it.
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
    now.saturating_sub(since) > clock::ticks_of_us(PATIENCE_US)
}

/// Whether a process of our own user, which need not deceive us, says that its proof comes: then payload of the other end is behind it.
fn is_begun_by_kin(s: &Sock) -> bool {
    s.peer_uid.load(Relaxed) == proc::euid() && s.region().is_some_and(|r| r.server.load(Acquire) == setup::COMMITTED)
}

/// Whether the stream ends within the proof, of which `n` bytes are there: a reset has destroyed the rest, or its sender died with a
/// part of it sent.
fn is_cut(s: &Sock, sock: i32, n: usize) -> bool {
    let shows = fd::poll_now(sock, libc::POLLRDHUP);
    // Without our own FIN, the kernel's socket is closed both ways by a reset alone.
    let was_reset = shows & libc::POLLERR != 0
        || shows & libc::POLLHUP != 0 && !s.has(flag::SHUT_WR)
        || matches!(s.rx.end.load(Relaxed), end::RST | end::FIN_RST | end::ABORTED | end::OURS);
    let is_over = was_reset || n >= SURE && shows & libc::POLLRDHUP != 0 && kernel::has_peer_ended(s, sock);
    // The rest may have come before the end did, and behind the first look.
    is_over && peeked(sock, &mut [0; PROOF as usize]) == Ok(n)
}

/// Takes the part of the proof that is there, which no program sees. The connection has ended by a reset, or does now.
#[cold]
fn take_cut(s: &Sock, sock: i32, n: usize) {
    signals::quietly(|| {
        if let Ok(n) = net::recv_slice(sock, &mut [0; PROOF as usize][..n], libc::MSG_DONTWAIT) {
            count::took(s, n as u64);
        }
    });
    end::found(s, end::RST);
}

/// How many bytes stand where the proof must be, and whether they are its.
fn seen(s: &Sock, sock: i32, want: &[u8]) -> Option<(usize, bool)> {
    let mut got = [0u8; PROOF as usize];
    match peeked(sock, &mut got) {
        Ok(n) => Some((n, got[..n] == want[..n])),
        Err(e) => {
            end::took(s, e);
            None
        }
    }
}

fn peeked(sock: i32, to: &mut [u8]) -> Res {
    net::recv_slice(sock, to, libc::MSG_PEEK | libc::MSG_DONTWAIT)
}

/// Looks at the 16 bytes without taking them: a requester that is not the other end of this
/// connection must not cost a byte of the real one's payload.
pub fn look(s: &Sock, sock: i32) -> Proof {
    let want = nonce_bytes(s);
    let Some((mut n, mut is_right)) = seen(s, sock, &want) else { return Proof::Missing };
    if is_right && (1..want.len()).contains(&n) && s.proof_since.load(Relaxed) == 0 {
        window::open(sock);
        (n, is_right) = match seen(s, sock, &want) {
            Some(seen) => seen,
            None => return Proof::Missing,
        };
    }
    if !is_right {
        process::count(Counter::ProofFailures, 1);
        s.note(Reason::StreamProofFailed);
        log::warn!(target: "smcr::rendezvous", fd = sock, at = s.rx.kernel.load(Relaxed), n, "not the proof where it must stand");
        return Proof::Wrong;
    }
    if n > 0 && n < want.len() && is_cut(s, sock, n) {
        take_cut(s, sock, n);
        return Proof::Missing;
    }
    if n < want.len() {
        if !waits_too_long(s, n) {
            return Proof::Missing;
        }
        if n < SURE && !is_begun_by_kin(s) {
            return Proof::Wrong;
        }
        take_cut(s, sock, n);
        resets::hostile(s, sock);
        return Proof::Missing;
    }
    Proof::Right
}

/// Takes what [`look`] has seen. False: it is there no more. A handler that came in between would find it taken and not proved, or not followed:
/// the caller has blocked them.
pub fn take(s: &Sock, sock: i32) -> bool {
    if net::recv_slice(sock, &mut [0; PROOF as usize], libc::MSG_DONTWAIT) != Ok(PROOF as usize) {
        return false;
    }
    count::took(s, PROOF);
    fault::pass(Fault::ProofTaken);
    s.step.store(step::PROVED, Release);
    if let Some(r) = s.region() {
        r.server.store(setup::PROVED, Release);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// An accepting side that waits for the proof, and its two sockets.
    fn waiting() -> (Sock, TcpStream, TcpStream) {
        // SAFETY: all zero is a fresh record.
        let s: Sock = unsafe { std::mem::zeroed() };
        s.role.store(role::SERVER, Relaxed);
        s.nonce[0].store(0x0102_0304_0506_0708, Relaxed);
        s.nonce[1].store(0x1112_1314_1516_1718, Relaxed);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = listener.accept().unwrap().0;
        (s, own, peer)
    }

    fn came(own: &TcpStream, events: i16) {
        let p = libc::pollfd { fd: own.as_raw_fd(), events, revents: 0 };
        assert_eq!(fd::poll(&mut [p], 5000), Ok(1));
    }

    fn ends_by_reset(peer: TcpStream) {
        let now = libc::linger { l_onoff: 1, l_linger: 0 };
        net::set_opt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &now).unwrap();
    }

    #[test]
    fn a_part_of_it_waits_for_the_rest() {
        for has_shut in [false, true] {
            a_part_waits(has_shut);
        }
    }

    /// `has_shut`: behind our own SHUT_RD, which the kernel shows as the peer's end.
    fn a_part_waits(has_shut: bool) {
        let (s, own, mut peer) = waiting();
        if has_shut {
            own.shutdown(std::net::Shutdown::Read).unwrap();
            s.set(flag::SHUT_RD);
        }
        let bytes = nonce_bytes(&s);
        peer.write_all(&bytes[..11]).unwrap();
        came(&own, libc::POLLIN);
        assert!(matches!(look(&s, own.as_raw_fd()), Proof::Missing));
        assert_eq!(s.rx.kernel.load(Relaxed), 0, "a part was taken");
        peer.write_all(&bytes[11..]).unwrap();
        while fd::unread(own.as_raw_fd()) != Ok(16) {
            std::thread::yield_now();
        }
        assert!(matches!(look(&s, own.as_raw_fd()), Proof::Right));
        assert!(take(&s, own.as_raw_fd()) && !take(&s, own.as_raw_fd()));
        assert_eq!(s.rx.kernel.load(Relaxed), PROOF);
    }

    /// What a reset has left of it is not the program's.
    #[test]
    fn a_part_before_a_reset_is_taken() {
        for n in [1, 11] {
            let (s, mut own, mut peer) = waiting();
            peer.write_all(&nonce_bytes(&s)[..n]).unwrap();
            came(&own, libc::POLLIN);
            ends_by_reset(peer);
            came(&own, libc::POLLRDHUP);
            assert!(matches!(look(&s, own.as_raw_fd()), Proof::Missing));
            assert_eq!((s.rx.kernel.load(Relaxed), s.rx.end.load(Relaxed)), (n as u64, end::RST));
            let told = own.read(&mut [0; 32]);
            assert!(told.is_err_and(|e| e.raw_os_error() == Some(libc::ECONNRESET)), "{n} bytes");
        }
    }

    /// Before an orderly end a short one is payload of somebody who has nothing to do with it; a long one is not.
    #[test]
    fn a_part_before_an_end() {
        for (n, taken) in [(3, 0), (11, 11)] {
            let (s, mut own, mut peer) = waiting();
            peer.write_all(&nonce_bytes(&s)[..n]).unwrap();
            drop(peer);
            came(&own, libc::POLLRDHUP);
            assert!(matches!(look(&s, own.as_raw_fd()), Proof::Missing));
            assert_eq!(s.rx.kernel.load(Relaxed), taken);
            assert_eq!(own.read(&mut [0; 32]).unwrap(), n - taken as usize);
        }
    }
}
