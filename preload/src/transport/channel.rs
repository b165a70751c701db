//! Reading a peer's channel: what to ring by and sleep pages are taken here, answers are kept for the
//! rendezvous that waits for them.

use super::peers::Peer;
use super::{budget, waiters};
use crate::control;
use crate::fault::{self, Step as Fault};
use crate::sys::porter::{self, Verdict};
use crate::sys::postponed::Work;
use crate::sys::{self, mem, pair, rights};
use smcr_proto::rendezvous::{Answer, MAX_MESSAGE, Message, Offer};

/// What reading brought besides what to ring by.
pub enum Heard {
    /// An answer to an offer of ours.
    Answer(Answer),
    /// An offer with the region's descriptor.
    Offer(Offer, i32),
    /// What one of its waiters is rung by.
    Bell,
    /// The peer has gone, or talked nonsense.
    Gone,
    /// Nothing more to read now.
    Nothing,
}

/// Takes what to ring by from the channel; true if there may be new ones. Offers and answers that come in
/// between are handed to the rendezvous through `SIDE`.
pub fn drain(peer: &Peer) -> bool {
    if !peer.start_reading() {
        // Another thread reads: what it finds serves us too, once it is through.
        let mut rounds = 0;
        while peer.is_being_read() && rounds < 10_000 {
            sys::proc::yield_now();
            rounds += 1;
        }
        return peer.is_readable();
    }
    let mut any = false;
    read(peer, |peer, heard| {
        any |= matches!(heard, Heard::Bell);
        (sink())(peer, heard);
    });
    peer.stop_reading();
    any
}

/// What reading has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// Nothing was there.
    Nothing,
    /// Something was, and more may be.
    Some,
    /// The peer has gone, or talked nonsense.
    Gone,
}

/// Messages that are read at once, more than an honest peer has to say: one that writes faster than they are read does not hold who reads them.
const AT_ONCE: u32 = 2 * waiters::SLOTS as u32;

/// Reads what a peer says. The caller has `start_reading`.
pub fn read(peer: &Peer, mut hear: impl FnMut(&Peer, Heard)) -> Read {
    let _work = Work::begin(); // no handler jumps out of it
    let mut read = Read::Nothing;
    for _ in 0..AT_ONCE {
        match read_one(peer) {
            Heard::Nothing => return read,
            Heard::Gone => return Read::Gone,
            heard => hear(peer, heard),
        }
        read = Read::Some;
    }
    read
}

/// Receives offers and answers met while draining; set by `rendezvous` at start.
pub type Sink = fn(&Peer, Heard);

static SIDE: std::sync::atomic::AtomicPtr<()> = std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());

/// Names the function that takes offers and answers.
pub fn set_sink(f: Sink) {
    SIDE.store(f as *mut (), std::sync::atomic::Ordering::Release);
}

fn sink() -> Sink {
    let p = SIDE.load(std::sync::atomic::Ordering::Acquire);
    if p.is_null() {
        return |_, heard| {
            if let Heard::Offer(_, fd) = heard {
                sys::fd::close(fd);
            }
        };
    }
    // SAFETY: only `set_sink` stores here, and only functions of this type.
    unsafe { std::mem::transmute::<*mut (), Sink>(p) }
}

/// Reads one message.
fn read_one(peer: &Peer) -> Heard {
    loop {
        if fault::fails(Fault::Descriptor) {
            return Heard::Nothing;
        }
        let Some(held) = peer.hold_channel() else { return Heard::Gone };
        let mut buf = [0u8; MAX_MESSAGE];
        if !peer.is_kin() {
            match weighed(peer) {
                Verdict::Good => {}
                Verdict::Hostile => return Heard::Gone,
                Verdict::Unknown => return Heard::Nothing,
            }
        }
        let mut fds = [-1; rights::MAX_FDS];
        let (n, mut count) = match rights::recv_with_fds(held.fd(), &mut buf, &mut fds) {
            Ok((0, count)) => {
                for fd in &fds[..count] {
                    sys::fd::close(*fd);
                }
                return Heard::Gone;
            }
            Ok(v) => v,
            Err(e) if e.0 == libc::EINTR => continue,
            // Without room for descriptors it waits in the channel.
            Err(e) if e.0 == libc::EAGAIN || e.0 == libc::EMFILE => return Heard::Nothing,
            Err(_) => return Heard::Gone,
        };
        let parsed = Message::parse(&buf[..n]);
        if let Ok((_, true)) = parsed
            && count > 0
        {
            count -= 1;
            peer.take_page(fds[count]);
        }
        match parsed {
            Ok((Message::Bell(bell), _)) if count == 1 => {
                peer.take_bell(bell, fds[0]);
                return Heard::Bell;
            }
            Ok((Message::Answer(a), _)) if count == 0 => return Heard::Answer(a),
            Ok((Message::Offer(o), _)) if count == 1 => return Heard::Offer(o, fds[0]),
            _ => {
                for fd in &fds[..count] {
                    sys::fd::close(*fd);
                }
                return Heard::Gone;
            }
        }
    }
}

/// Whether the next message of a peer of another user can be taken: only with descriptors of the kinds that it should have,
/// since any other could hold who closes it.
fn weighed(peer: &Peer) -> Verdict {
    let mut raw = [0; MAX_MESSAGE];
    match rights::peek_without_fds(peer.channel(), &mut raw) {
        // Beyond the budget it waits in the channel, as where there is no room at all: its sender does not take it for taken. What else
        // comes is not kept open.
        Ok((n, true)) if control::is_restricted() || is_bell(&raw[..n]) && !budget::admits(false) => Verdict::Unknown,
        Ok((_, true)) => porter::weigh(peer.channel(), fits),
        _ => Verdict::Good, // nothing comes with it, or nothing is there
    }
}

fn is_bell(raw: &[u8]) -> bool {
    matches!(Message::parse(raw), Ok((Message::Bell(_), _)))
}

/// Runs in a porter. Nothing here asks anybody but the kernel, which a file system or who holds a socket's lock could delay.
fn fits(raw: &[u8], fds: &[i32]) -> bool {
    let Ok((message, has_page)) = Message::parse(raw) else { return false };
    let (others, page) = fds.split_at(fds.len() - usize::from(has_page && !fds.is_empty()));
    page.iter().all(|fd| mem::is_in_memory(*fd))
        && match message {
            Message::Bell(_) => matches!(others, [end] if pair::is_end(*end)),
            Message::Offer(_) => matches!(others, [memory] if mem::is_in_memory(*memory)),
            Message::Answer(_) => others.is_empty(),
        }
}
