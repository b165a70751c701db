//! Payload that lies unread in TCP before a switch to memory when the descriptor goes to another program.
//!
//! That program would read on into the proof and the doorbells behind it, and never see the ring. So the consumer takes
//! the payload off the kernel's stream, up to the switch, puts it into the direction's annex ([`Annex`]) and asks for its return:
//! the producer sends the annex through TCP again, and then what is unread in the ring.
//! The consumer's part is called by `rendezvous::handover`, the producer's by [`super::switch`] and [`super::debt`].

use super::follow::{self, Source};
use super::{count, debt, end, proof, switch};
use crate::config;
use crate::family::lock::Marker;
use crate::family::process;
use crate::family::sock::Sock;
use crate::sys::{clock, fd, net};
use crate::transport::annex::{self, Annex};
use crate::transport::region::Dir;
use smcr_proto::reason::Reason;
use std::sync::atomic::Ordering::*;

/// Consumer: takes up what lies before a switch that the peer has marked, or is about to mark, and follows it. False: some of
/// it was taken, and the switch was not reached until `until`.
pub fn take_up(s: &Sock, sock: i32, until: u64) -> bool {
    let Some(dir) = s.rx.dir().filter(|_| !s.is_linked()) else { return true };
    follow::close_door(dir, until);
    let mut taken = Taken { annex: None, bytes: 0 };
    while !s.rx_in_memory() && (is_marked(s, dir) || !proof::refuse(s)) {
        if !taken.more(s, sock, dir) {
            if clock::now_ns() > until {
                break;
            }
            let _ = fd::poll(&mut [libc::pollfd { fd: sock, events: libc::POLLRDHUP, revents: 0 }], 1);
        }
    }
    dir.annex.store(taken.bytes as u64, Relaxed); // the request that follows is a Release
    if s.rx_in_memory() {
        switch::answer_tx(s, sock); // doorbells wake the peer, which may sleep on TCP
    }
    taken.bytes == 0 || s.rx_in_memory()
}

fn is_marked(s: &Sock, dir: &Dir) -> bool {
    dir.switch.load(Acquire) != s.rx.switches.load(Relaxed)
}

/// What was taken up.
struct Taken {
    annex: Option<Annex>,
    bytes: usize,
}

impl Taken {
    /// Takes what is there, or follows; false if there is nothing now.
    fn more(&mut self, s: &Sock, sock: i32, dir: &Dir) -> bool {
        let marker = Marker::new();
        let Some(_held) = s.rx.lock.try_take(&marker) else { return false };
        match follow::follow(s, sock, dir) {
            Source::Tcp(n) if n > 0 && is_marked(s, dir) => self.read(s, sock, dir, n),
            Source::Broken if proof::is_due(s) => {
                follow::abandon(s, Reason::StreamProofFailed);
                true
            }
            Source::Broken => {
                end::hostile(s, sock);
                true
            }
            _ => false,
        }
    }

    fn read(&mut self, s: &Sock, sock: i32, dir: &Dir, n: u64) -> bool {
        if self.annex.is_none() {
            self.annex = s.region().and_then(|r| Annex::map(r, dir).ok());
        }
        let Some(annex) = &mut self.annex else { return false };
        let memory = config::max_memory().saturating_sub(process::memory());
        let room = annex::LEN.min(memory as usize).saturating_sub(self.bytes);
        let n = room.min(n as usize);
        match net::recv_slice(sock, &mut annex.bytes()[self.bytes..][..n], libc::MSG_DONTWAIT) {
            Ok(n) if n > 0 => {
                count::took(s, n as u64);
                self.bytes += n;
                true
            }
            Err(e) => {
                end::took(s, e);
                false
            }
            Ok(_) => false,
        }
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
    let mapped = s.tx.dir().zip(s.region()).and_then(|(dir, r)| Annex::map(r, dir).ok());
    let Some(mut annex) = mapped else {
        end::reset(s, sock); // an orderly end would hide that bytes are missing
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
