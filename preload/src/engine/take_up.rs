//! Payload that lies unread in TCP before a switch to memory, or in the ring before one to TCP, when the descriptor goes to
//! another program.
//!
//! That program would read on into the proof and the doorbells behind it, and never see the ring. So the consumer takes
//! the payload off the kernel's stream, up to the switch, puts it into the direction's annex ([`Annex`]) and asks for its return:
//! the producer sends the annex through TCP again, and then what is unread in the ring.
//! The consumer's part is called by `rendezvous::handover`, the producer's by [`super::switch`] and [`super::debt`].

use super::follow::{self, Source, is_marked};
use super::{bell, bulk, count, debt, end, here, kernel, offer, own_end, proof, resets, rx, signals, switch};
use crate::config;
use crate::family::lock::Marker;
use crate::family::process;
use crate::family::sock::Sock;
use crate::sys::{clock, fd, net, proc};
use crate::transport::annex::{self, Annex};
use crate::transport::region::{Dir, ctl, fin};
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// Consumer: takes up what lies before a switch that the peer has marked, or is about to mark, and follows it. False: the switch was not
/// reached until `until`, or what was taken was not called for.
///
/// A peer that has gone to TCP by itself has left bytes in the ring, and what is behind them in TCP can't wait for their
/// return. So both are taken up, and the peer is called to memory meanwhile, which makes the place up to where they go.
///
/// `why` it leaves memory, which tells relatives that find the peer's proof refused (`rendezvous::server`).
pub fn take_up(s: &Sock, sock: i32, why: Reason, until: u64) -> bool {
    let Some(dir) = s.rx.dir().filter(|_| !s.is_linked()) else { return true };
    // Not nothing where the peer has gone to TCP by itself once more before it heard of the last request.
    if here::again(s, dir).is_none() {
        return false;
    }
    if proof::is_due(s) {
        s.note(why);
    }
    let mut taken = Taken { annex: None };
    loop {
        if s.rx_in_memory() && is_marked(s, dir) && !has_ended(s, sock, dir) {
            while s.rx_in_memory() && taken.of_ring(s, sock, dir) && clock::now_ns() < until {
                proc::yield_now(); // doorbells on their way stand before the switch
            }
        }
        if s.rx_in_memory() {
            break;
        }
        to_memory(s, sock, dir, &mut taken, until);
        // It may have marked its way back already. With nothing in the ring between both marks it is still to be called for what was taken.
        let goes_on = s.rx_in_memory() || here::taken(dir) > 0 && s.rx.end.load(Relaxed) == 0;
        if !goes_on || clock::now_ns() > until {
            break;
        }
    }
    if !s.rx_in_memory() {
        dir.ctl.fetch_and(!ctl::COME, AcqRel); // else the request does it (`follow::freeze`)
    }
    offer::close_door(dir, until);
    if s.rx_in_memory() {
        switch::answer_tx(s, sock); // doorbells wake the peer, which may sleep on TCP
    }
    s.rx_in_memory() || here::taken(dir) == 0 && !is_marked(s, dir)
}

/// Receiving is on TCP: takes what comes up to the next switch to memory, for which it calls if something was taken.
fn to_memory(s: &Sock, sock: i32, dir: &Dir, taken: &mut Taken, until: u64) {
    let calls = here::taken(dir) > 0;
    if !calls {
        offer::close_door(dir, until);
    }
    while !s.rx_in_memory() && (calls || is_marked(s, dir) || !proof::refuse(s)) {
        // It may give the connection away as well, and wait for this end.
        if follow::is_asked(s) {
            switch::attend(s, sock);
        }
        debt::pay(s, sock);
        // Before anything is taken: one that goes on sending puts more behind it for as long as it is not called.
        let wishes = if calls && !is_marked(s, dir) { ctl::COME | ctl::READY } else { 0 };
        if dir.ctl.fetch_or(wishes, AcqRel) & wishes != wishes {
            bell::call(s, sock);
        }
        if !taken.more(s, sock, dir) {
            if clock::now_ns() > until || calls && s.rx.end.load(Relaxed) != 0 {
                break;
            }
            own_end::answer(s);
            if wishes != 0 {
                bell::call(s, sock);
            }
            let _ = fd::poll(&mut [libc::pollfd { fd: sock, events: libc::POLLRDHUP, revents: 0 }], 1);
        }
    }
}

/// Whether the peer sends nothing more, and nothing again.
fn has_ended(s: &Sock, sock: i32, dir: &Dir) -> bool {
    kernel::look_at_kernel_for_sender(s, sock);
    s.rx.end.load(Relaxed) != 0 || dir.fin.load(Acquire) & fin::WRITE != 0
}

/// What was taken up: how much, the direction says, whose return by the peer takes it back to nothing.
struct Taken {
    annex: Option<Annex>,
}

impl Taken {
    /// Takes what the ring holds before a switch to TCP, or follows it; false if nothing can be taken.
    fn of_ring(&mut self, s: &Sock, sock: i32, dir: &Dir) -> bool {
        let marker = Marker::new();
        let Some(_held) = s.rx.lock.try_take(&marker) else { return true };
        let n = match follow::follow(s, sock, dir) {
            Source::Ring(n) => n,
            Source::Tcp(_) => return true,
            Source::Broken => {
                resets::hostile(s, sock);
                return false;
            }
        };
        let Some((ring, size)) = bulk::rx_ring(s, dir) else { return false };
        let from = s.rx.cursor.load(Relaxed);
        let n = n.min(size);
        if n == 0 {
            return true; // doorbells that are on their way
        }
        // A handler that left it would have them in both places, or in none.
        signals::quietly(|| {
            let Some(room) = self.room(s, dir, n) else { return false };
            if room.len() < n {
                return false;
            }
            // SAFETY: the annex has room for as many bytes.
            unsafe { ring.get(from, room.as_mut_ptr(), n) };
            Taken::took(s, dir, n);
            rx::give_back(s, dir, size, from + n as u64);
            true
        })
    }

    /// Takes what is there, or follows; false if there is nothing now.
    fn more(&mut self, s: &Sock, sock: i32, dir: &Dir) -> bool {
        let marker = Marker::new();
        let Some(_held) = s.rx.lock.try_take(&marker) else { return false };
        // Counted first: a switch is marked before the first byte that is not payload is sent.
        let there = fd::unread(sock).unwrap_or(0) as u64;
        match follow::follow(s, sock, dir) {
            Source::Tcp(n) if n.min(there) > 0 && (is_marked(s, dir) || here::taken(dir) > 0) => {
                let n = if is_marked(s, dir) { n.min(follow::payload_left(s, dir).unwrap_or(0)) } else { n };
                self.read(s, sock, dir, n.min(there))
            }
            Source::Broken if proof::is_due(s) => {
                proof::has_failed(s);
                true
            }
            Source::Broken => {
                resets::hostile(s, sock);
                true
            }
            _ => {
                let is_through = || fd::poll_now(sock, libc::POLLRDHUP) != 0 && fd::unread(sock) == Ok(0);
                if here::taken(dir) > 0 && !s.rx_in_memory() && is_through() && kernel::has_peer_ended(s, sock) {
                    end::found(s, end::FIN);
                }
                false
            }
        }
    }

    fn read(&mut self, s: &Sock, sock: i32, dir: &Dir, n: u64) -> bool {
        // As above.
        signals::quietly(|| {
            let Some(room) = self.room(s, dir, n as usize) else { return false };
            match net::recv_slice(sock, room, libc::MSG_DONTWAIT) {
                Ok(n) if n > 0 => {
                    count::took(s, n as u64);
                    Taken::took(s, dir, n);
                    true
                }
                Err(e) => {
                    end::took(s, e);
                    false
                }
                Ok(_) => false,
            }
        })
    }

    /// So many more are in the annex: from here on they come first for everybody who reads.
    fn took(s: &Sock, dir: &Dir, n: usize) {
        // A call that is left is begun anew behind them. The request that follows is a Release.
        dir.annex.store((here::taken(dir) + n) as u64, Relaxed);
        s.rx.gate.store(1, Relaxed);
    }

    /// Room for `n` bytes, as far as there is some.
    fn room(&mut self, s: &Sock, dir: &Dir, n: usize) -> Option<&mut [u8]> {
        if self.annex.is_none() {
            self.annex = s.region_of_peers().and_then(|r| Annex::map(r, dir).ok());
        }
        let memory = config::max_memory().saturating_sub(process::memory());
        let taken = here::taken(dir);
        let room = annex::LEN.min(memory as usize).saturating_sub(taken);
        let bytes = self.annex.as_mut()?.bytes();
        Some(&mut bytes[taken..][..room.min(n)])
    }
}

/// Producer: how much the consumer says is in the annex. None: more than there can be.
pub fn claimed(dir: &Dir) -> Option<u32> {
    let n = dir.annex.load(Relaxed); // behind the Acquire of the request
    (n <= annex::LEN as u64).then_some(n as u32)
}

/// Producer, with the sending lock held: sends of the annex what the kernel takes now; true if all of it has gone.
pub fn pay(s: &Sock, sock: i32) -> bool {
    let (mut from, to) = (s.annex_from.load(Relaxed) as usize, s.annex_to.load(Relaxed) as usize);
    if from >= to {
        return true;
    }
    let mapped = s.tx.dir().zip(s.region_of_peers()).and_then(|(dir, r)| Annex::map(r, dir).ok());
    let Some(mut annex) = mapped else {
        resets::reset_at_once(s, sock); // an orderly end would hide that bytes are missing
        return true;
    };
    while from < to {
        match debt::send_now(s, sock, &annex.bytes()[from..to]) {
            Some(0) => return false,
            Some(n) => from += n,
            None => break,
        }
        s.annex_from.store(from as u32, Relaxed);
    }
    s.annex_to.store(0, Relaxed);
    annex.clear();
    true
}
