//! How a handshake ends: with a link, or on TCP with what the program has sent meanwhile.

use super::greet::Late;
use super::{Machine, Shake};
use crate::engine::linked;
use crate::family::sock::{Sock, flag};
use crate::layout::fin;
use crate::link::leave::Leaving;
use crate::link::{lock, wake};
use crate::log;
use crate::rendezvous::smc::service;
use crate::rendezvous::smc::stream;
use crate::rendezvous::smc::way_back::Leaver;
use crate::sys::{Errno, net};
use smcr_proto::reason::Reason;
use smcr_proto::smc::handshake::Params;
use std::sync::atomic::{Ordering::*, fence};

impl Shake {
    pub(super) fn head(&self) -> u64 {
        lock::with(|all| self.slot(all).map(|s| s.tx_dir().head.load(Acquire))).flatten().unwrap_or(0)
    }

    pub(super) fn link(&mut self, params: &Params) {
        let (ours, Some(id)) = (self.is_ours(), self.id) else { return };
        let agreed = lock::with(|all| {
            let slot = all.slot_of(id)?;
            // In any case: whoever waits for it hears of its end as of a link's.
            (slot.active, slot.ours) = (true, ours);
            let activated = slot.conn.as_mut().is_some_and(|conn| conn.activate(&params.peer).is_ok());
            let Some(conn) = slot.conn.as_mut().filter(|_| activated) else {
                slot.tainted = true;
                slot.broken(None);
                return None;
            };
            conn.set_libsmcr(ours);
            #[cfg(feature = "faults")]
            crate::link::forge::met(id.index, &params.peer);
            let (group, link) = (slot.group, slot.link);
            if let Some(Some(group)) = group.map(|g| &mut all.groups[g]) {
                group.note_peer_key(link, &params.peer);
            }
            Some(())
        });
        if agreed.flatten().is_none() {
            let _ = net::disconnect(self.fd);
        }
        if let Some(s) = self.sock() {
            self.note_kernel(s);
            if ours {
                s.set(flag::RETURNS);
            }
            linked::agreed(s);
        }
        log::debug!(target: "smcr::link", fd = self.fd, first = params.first_contact, "connection over a link");
        service::watch(self.fd, id, ours);
        let place = self.group;
        // Pairs with the one in `linked::before_close`: a program that closes meanwhile keeps a descriptor for the way back, or is seen here.
        fence(SeqCst);
        lock::with(|all| {
            if ours && let Some(slot) = all.slot_of(id).filter(|s| s.tcp.is_none() && s.tx_dir().fin.load(Relaxed) & fin::CLOSED != 0) {
                slot.tcp = Some(self.fd);
                self.gone = true;
            }
            // What came before this end knew that there is a way back.
            all.note_unseen(id.index, false);
            // The group may have ended meanwhile.
            place.map(|place| all.look_at_group(place))
        });
    }

    fn note_kernel(&self, s: &Sock) {
        s.tx.kernel.store(self.sent, Relaxed);
        s.rx.kernel.store(self.received, Relaxed);
    }

    /// Between two libsmcr, Confirm is sent and there is no link: the other end may think that there is one, so both say how
    /// far they have come, as with a link that dies later. True: that goes on.
    pub(super) fn come_back(&mut self) -> bool {
        if !self.is_ours() {
            return false;
        }
        let (made, place) = (self.made, self.group);
        let id = lock::with(|all| {
            let slot = self.slot(all)?;
            (slot.ours, slot.leaving) = (true, Leaving::Wanted);
            let id = slot.id();
            if let Some(place) = place.filter(|_| made) {
                all.end_group(place);
            }
            Some(id)
        });
        let Some(id) = id.flatten() else { return false };
        log::info!(target: "smcr::link", fd = self.fd, "no link came up: on over TCP");
        self.tried = Some(false);
        if let Some(s) = self.sock() {
            s.note(Reason::SmcTimeoutConfirmLink);
            s.set(flag::RETURNS);
            let out = self.out.len() as u64;
            self.sent += out;
            self.note_kernel(s);
        }
        self.machine = Machine::Over;
        service::leave(Leaver::new(id, self.fd, std::mem::take(&mut self.out)));
        self.gone = true;
        true
    }

    /// Server: Accept has named a ring, of a group that goes on. Who has read it may have sent Confirm, and write there whatever it is told now by
    /// TCP: the ring is nobody else's as long as the group lasts. Not where the peer itself has declined.
    pub(super) fn keep_ring_back(&self) {
        if !self.is_client() && !self.made {
            lock::with(|all| self.slot(all).map(|slot| (slot.tainted, slot.has_lost) = (true, true)));
        }
    }

    /// The connection stays on TCP.
    pub(super) fn fall_back(&mut self, why: Reason) {
        self.machine = Machine::Over;
        self.drained = Some(0);
        let made = self.group.take().filter(|_| self.made);
        lock::with(|all| {
            if let Some(id) = self.id {
                all.leave_group(id);
            }
            if let Some(place) = made {
                all.end_group(place);
            }
        });
        if let Some(s) = self.sock() {
            s.rx.ring.store(std::ptr::null_mut(), Release); // the group has it again
            s.note(why);
        }
    }

    /// Sends what the program has sent meanwhile, then lets it go on by itself. True: done.
    pub(super) fn drain(&mut self) -> bool {
        let Some(mut at) = self.drained else { return true };
        let Some(id) = self.id else { return self.late == Late::Nothing };
        // Asked before its ring is looked at: what it has sent before it left is there then.
        let mut left_by_program = self.sock().is_none();
        let done = lock::with(|all| {
            let Some(slot) = self.slot(all) else { return true };
            let dir = slot.tx_dir();
            left_by_program |= dir.fin.load(Acquire) & fin::LEFT != 0;
            loop {
                let head = dir.head.load(Acquire);
                if head == at {
                    return true;
                }
                let (offset, size) = ((at % u64::from(slot.tx.1)) as usize, slot.tx.1 as usize);
                let n = ((head - at) as usize).min(size - offset);
                // SAFETY: bytes of the sending ring that the program has published.
                let piece = unsafe { std::slice::from_raw_parts(slot.tx.0.start.add(offset), n) };
                match stream::send(self.fd, piece) {
                    Ok(n) => {
                        at += n as u64;
                        dir.tail.store(at, Release);
                        wake::writer(dir);
                    }
                    Err(Errno(libc::EAGAIN | libc::EINTR)) => return false,
                    Err(_) => at = head, // the connection is dead: the program hears it from TCP
                }
            }
        })
        .unwrap_or(false);
        self.drained = Some(at);
        if left_by_program {
            if done {
                lock::with(|all| {
                    if all.slot_of(id).is_some() {
                        all.release(id.index);
                    }
                });
            }
            return done;
        }
        let Some(s) = self.sock() else { return false };
        let is_still = self.is_still();
        if !self.receives && self.late == Late::Nothing {
            self.receives = linked::return_receiving(s, self.received, is_still);
            lock::with(|all| all.wake_slot(id.index));
        }
        self.sends = self.sends || done && linked::return_sending(s, self.fd, (at, self.sent), is_still);
        if !done || !self.sends || !self.receives {
            return false;
        }
        let note = || {
            lock::with(|all| self.slot(all).map(|slot| slot.on_tcp = true));
        };
        if !linked::return_whole(s, self.fd, is_still, note) {
            return false;
        }
        lock::with(|all| all.wake_slot(id.index));
        true
    }
}
