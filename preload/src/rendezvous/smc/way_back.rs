//! A connection leaves its link for TCP: the talk with the other end, which is libsmcr too.
//!
//! Each end says once over TCP how much of the other's stream it has (`proto::way_back`), and sends its own
//! stream from where the other one stands. Either end may begin: because its link is dead, because somebody
//! wants the descriptor as it is, or because the other end has spoken. Both at once is no different. Run by
//! the service thread like a handshake ([`super::shake`]); `link::leave` has the link's part, `engine::way_back`
//! the program's.

use super::shake::Wants;
use crate::engine::debt;
use crate::engine::linked;
use crate::engine::way_back::{self, Stand};
use crate::family::sock::Sock;
use crate::layout::fin;
use crate::link::leave::Leaving;
use crate::link::lock::{self, now};
use crate::link::slot::Id;
use crate::link::wake;
use crate::log;
use crate::sys::{Errno, Res, dir, net, spare};
use smcr_proto::smc::Time;
use smcr_proto::way_back::{LEN, WayBack};
use std::sync::atomic::Ordering::*;

/// One connection on its way.
pub struct Leaver {
    id: Id,
    /// The TCP connection, by a descriptor of our own.
    pub fd: i32,
    stage: Stage,
    /// Bytes to be sent: of a handshake that came to nothing, and the message.
    out: Vec<u8>,
    heard: [u8; LEN],
    got: usize,
    stand: Stand,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Messages are on their way.
    Quiet,
    /// Both ends say where they stand.
    Talk,
    /// The directions move.
    Move,
    /// What the peer does not have goes through TCP.
    Pay,
    /// The program has closed: the same, and then TCP's end.
    Alone(u64),
    Over,
}

impl Leaver {
    /// For a connection that wants to leave. None: it is gone, or nobody here has its descriptor. EMFILE: to be asked again.
    pub fn find(index: u32) -> Res<Option<Leaver>> {
        let found = lock::with(|all| {
            let slot = all.slot(index).filter(|s| s.leaving == Leaving::Wanted)?;
            Some((slot.id(), slot.cookie, slot.tcp, slot.sock()))
        });
        let Some((id, cookie, tcp, sock)) = found.flatten() else { return Ok(None) };
        let hint = tcp.or(sock.map(|s| s.fd.load(Relaxed)));
        match descriptor(hint, cookie) {
            Ok(fd) => Ok(Some(Leaver::new(id, fd, Vec::new()))),
            Err(full @ Errno(libc::EMFILE)) => Err(full),
            Err(_) => {
                log::warn!(target: "smcr::link", index, "no descriptor for the way back");
                lock::with(|all| all.cancel_back(index));
                Ok(None)
            }
        }
    }

    /// The same for a handshake that was agreed upon and has no link; `out` is what it still has to send.
    pub fn new(id: Id, fd: i32, out: Vec<u8>) -> Leaver {
        let stand = Stand { received: 0, taken: 0 };
        Leaver { id, fd, stage: Stage::Quiet, out, heard: [0; LEN], got: 0, stand }
    }

    /// Goes on as far as it can; true when it is over.
    pub fn step(&mut self) -> bool {
        loop {
            let before = self.stage;
            match self.stage {
                Stage::Quiet => self.fall_quiet(),
                Stage::Talk => self.talk(),
                Stage::Move => self.go_home(),
                Stage::Pay => self.pay(),
                Stage::Alone(at) => self.send_alone(at),
                Stage::Over => {
                    spare::give_back(self.fd, lock::service());
                    return true;
                }
            }
            if self.stage == before {
                return false;
            }
        }
    }

    /// What to wait for.
    pub fn wants(&self) -> Wants {
        let soon = Some(now() + Time::from_millis(1));
        match self.stage {
            Stage::Talk => {
                let write = if self.out.is_empty() { 0 } else { libc::POLLOUT };
                let read = if self.got < LEN { libc::POLLIN } else { 0 };
                Wants { events: write | read, at: None }
            }
            Stage::Pay | Stage::Alone(_) => Wants { events: libc::POLLOUT, at: None },
            _ => Wants { events: 0, at: soon },
        }
    }

    /// The program's record, while the program has it.
    fn sock(&self) -> Option<&'static Sock> {
        lock::with(|all| all.slot_of(self.id)?.sock()).flatten()
    }

    fn fall_quiet(&mut self) {
        if let Some(s) = self.sock()
            && s.is_public()
        {
            // Its waiter sees what TCP has, and nothing else.
            if !way_back::freeze(s) {
                return;
            }
        }
        if let Some(received) = lock::with(|all| all.state_back(self.id.index)).flatten() {
            self.stand.received = received;
            self.out.extend_from_slice(&WayBack { received }.emit());
            self.stage = Stage::Talk;
        }
    }

    fn talk(&mut self) {
        while !self.out.is_empty() {
            match net::send_slice(self.fd, &self.out, libc::MSG_DONTWAIT) {
                Ok(n) => drop(self.out.drain(..n)),
                Err(Errno(libc::EAGAIN | libc::EINTR)) => break,
                Err(_) => return self.cancel(),
            }
        }
        while self.got < LEN {
            match net::recv_slice(self.fd, &mut self.heard[self.got..], libc::MSG_DONTWAIT) {
                Ok(n) if n > 0 => self.got += n,
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return,
                _ => return self.cancel(),
            }
        }
        if !self.out.is_empty() {
            return;
        }
        let (sent, taken) = lock::with(|all| all.sent_by_link(self.id.index)).unwrap_or_default();
        match WayBack::parse(&self.heard).and_then(|w| w.resume(taken, sent)) {
            Some(taken) => {
                self.stand.taken = taken;
                self.stage = Stage::Move;
            }
            None => {
                log::warn!(target: "smcr::link", fd = self.fd, "what the peer says of its way back can't be right");
                let _ = net::disconnect(self.fd);
                lock::with(|all| all.break_back(self.id.index));
                self.stage = Stage::Over;
            }
        }
    }

    /// TCP has ended: there is nowhere to go.
    fn cancel(&mut self) {
        lock::with(|all| all.cancel_back(self.id.index));
        self.stage = Stage::Over;
    }

    fn go_home(&mut self) {
        let Some(s) = self.sock() else {
            self.stage = Stage::Alone(self.stand.taken);
            return;
        };
        if way_back::come_back(s, self.fd, self.id.index, self.stand) {
            lock::with(|all| all.wake_slot(self.id.index));
            wake::everybody();
            self.stage = Stage::Pay;
        }
    }

    fn pay(&mut self) {
        let Some(s) = self.sock() else {
            // Closed meanwhile: that has paid.
            lock::with(|all| all.left(self.id.index));
            self.stage = Stage::Over;
            return;
        };
        if debt::pay(s, self.fd) {
            linked::after_shutdown(s, self.fd);
            lock::with(|all| all.left(self.id.index));
            net::tell_of_room(self.fd); // no edge has come from it while it was not used
            self.stage = Stage::Over;
        }
    }

    /// Sends what the program has left behind.
    fn send_alone(&mut self, at: u64) {
        let fd = self.fd;
        let result = lock::with(|all| {
            let slot = all.slot(self.id.index)?;
            let (dir, size) = (slot.tx_dir(), u64::from(slot.tx.1));
            let (mut at, head) = (at, dir.head.load(Acquire));
            if dir.fin.load(Acquire) & fin::RESET != 0 {
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                let _ = net::set_opt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
                at = head;
            }
            while at < head {
                let n = (head - at).min(size - at % size) as usize;
                // SAFETY: bytes of the sending ring that the program has published.
                let piece = unsafe { std::slice::from_raw_parts(slot.tx.0.start.add((at % size) as usize), n) };
                match net::send_slice(fd, piece, libc::MSG_DONTWAIT) {
                    Ok(n) => at += n as u64,
                    Err(Errno(libc::EAGAIN | libc::EINTR)) => return Some((at, false)),
                    Err(_) => at = head, // TCP is dead
                }
            }
            Some((at, true))
        });
        match result.flatten() {
            Some((at, false)) => self.stage = Stage::Alone(at),
            _ => {
                lock::with(|all| all.left(self.id.index));
                self.stage = Stage::Over;
            }
        }
    }
}

/// A descriptor of our own of the TCP connection with this cookie. EMFILE: the process has as many as it may have now.
pub(super) fn descriptor(hint: Option<i32>, cookie: u64) -> Res<i32> {
    // The number may be another's at any moment: what was duplicated is asked.
    let take = |n: i32| {
        let own = spare::duplicate(n)?;
        if net::cookie(own) == Ok(cookie) {
            return Ok(own);
        }
        spare::give_back(own, lock::service());
        Err(Errno(libc::EBADF))
    };
    match hint.map(take) {
        Some(Err(Errno(libc::EBADF))) | None => {}
        Some(hinted) => return hinted,
    }
    let mut found = Err(Errno(libc::EBADF));
    dir::numbers(c"/proc/self/fd", |n| {
        if found.is_err() && net::cookie(n) == Ok(cookie) {
            found = take(n);
        }
    })?;
    found
}
