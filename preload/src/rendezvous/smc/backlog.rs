//! Connections that a server is slow to accept: a kernel's client among them is declined in time.
//!
//! A kernel's connect() waits for the server's CLC message, and fails after 6 s; TCP's would have succeeded at once. So where a
//! connection has lain in a listener's queue for [`PATIENCE`], or for [`QUIET`] without any accept(), the service thread takes it, declines,
//! and keeps it for the program's accept(). (A server may read its first connection until a client is through that connects all of its own
//! before it speaks, as iperf 2 does.) That the listener stays readable for whoever waits for it, another connection
//! takes its place in the queue: one of our own to the same listener. accept() knows it by both its addresses, and gives the program the
//! one that it stands for. What becomes of the stand-in becomes of the other one: the kernel resets it with the listener.
//!
//! Only where this process alone has the listener. Where it forks afterwards, the child's accept() asks for what is kept here ([`super::desk`]); a
//! listener of which none has been accepted yet has [`PATIENCE`], for it may be that of a program which makes its children first. The queue
//! is looked at when something has come, and then after [`QUIET`]: a busy server costs one look in that time, an idle one
//! none.

use super::{declined, desk, gate, service};
use crate::engine::close;
use crate::family::sock::{Sock, flag};
use crate::link::lock::now;
use crate::log;
use crate::sys::few::{self, Brief};
use crate::sys::{Errno, Sysno, fd, net};
use smcr_proto::smc::Time;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// How long a connection may wait for accept(). A look that just misses it comes again after the same time, and 6 s are
/// the client's.
const PATIENCE: Time = Time::from_millis(2400);
/// How long where the program accepts none meanwhile: longer than a handshake takes it that makes a link.
const QUIET: Time = Time::from_millis(800);
/// When to look again while a fork is under way.
const SOON: Time = Time::from_millis(10);
/// Most connections that are kept.
const MOST: usize = 64;

/// A connection that is kept, and the one that stands for it in the queue.
struct Kept {
    /// Address and port of our own connection; 0 free.
    key: AtomicU64,
    /// Those it leads to. Another user may have the former as well, towards another listener.
    to: AtomicU64,
    /// -1: both are of a process that this one was forked from.
    ours: AtomicI32,
    taken: AtomicI32,
    /// Which one is asked ([`desk`]).
    elder: AtomicU32,
    /// Bytes of CLC received and sent.
    clc: AtomicU64,
}

static KEPT: [Kept; MOST] = [const {
    Kept {
        key: AtomicU64::new(0),
        to: AtomicU64::new(0),
        ours: AtomicI32::new(-1),
        taken: AtomicI32::new(-1),
        elder: AtomicU32::new(0),
        clc: AtomicU64::new(0),
    }
}; MOST];
/// Connections that are kept.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Listeners that are watched.
static WATCHED: AtomicU32 = AtomicU32::new(0);
/// The service thread is at a queue.
static TAKING: AtomicU32 = AtomicU32::new(0);

/// A listener.
pub struct Listener {
    s: &'static Sock,
    generation: u32,
    cookie: u64,
    /// Its number in the program.
    pub fd: i32,
    due: Option<Due>,
}

/// The next look at a queue. Connections are counted from the listener's first.
#[derive(Clone, Copy)]
struct Due {
    at: Time,
    /// When [`PATIENCE`] is over, and the last one that had come when it began.
    end: (Time, u32),
    /// At the last look: the last one that had come, and how many were accepted.
    before: (u32, u32),
}

/// Before accept(2) of a listener: two loads where nothing is watched. True: [`leave`] must follow.
#[inline]
pub fn enter(listener: &Sock) -> bool {
    (WATCHED.load(Relaxed) != 0 || COUNT.load(Relaxed) != 0) && enter_slowly(listener)
}

#[cold]
fn enter_slowly(listener: &Sock) -> bool {
    loop {
        // SeqCst on both sides (here and in `take_some`): either we see TAKING, or the other side sees us.
        listener.rx.in_kernel.fetch_add(1, SeqCst);
        if TAKING.load(SeqCst) == 0 {
            return true;
        }
        listener.rx.in_kernel.fetch_sub(1, SeqCst);
        let _ = fd::poll(&mut [], 1);
    }
}

/// accept(2) gave `new`, or failed. Some: it stood for another one, which has this number now; bytes of CLC that it has
/// received and sent.
pub fn leave(listener: &Sock, new: i32) -> Option<[u64; 2]> {
    listener.rx.in_kernel.fetch_sub(1, SeqCst);
    if new < 0 || COUNT.load(Relaxed) == 0 {
        return None;
    }
    let kept = kept_by(new)?;
    if kept.taken.load(Relaxed) < 0 {
        // One that nobody has any more ends at once. Or it is none by now, but somebody else's with the same number.
        return give(kept.ask()?, new);
    }
    // A child that is forked between the two would have a copy of which it knows nothing.
    let _entered = gate::enter_soon();
    let (taken, ours, clc) = kept.give_up()?;
    fd::close(ours);
    give((taken, clc), new)
}

/// The kept connection for which this one of ours, as it was accepted, stands.
fn kept_by(sock: i32) -> Option<&'static Kept> {
    let (from, to) = (key(&net::peer_addr(sock).ok()?)?, key(&net::local_addr(sock).ok()?)?);
    KEPT.iter().find(|k| k.key.load(Acquire) == from && k.to.load(Relaxed) == to)
}

/// Gives a connection the number of its stand-in, and says what of CLC it has received and sent; it is closed in any case.
fn give((taken, clc): (i32, u64), new: i32) -> Option<[u64; 2]> {
    // The new number's flags are as accept4 was told.
    let flags = fd::fcntl(new, libc::F_GETFD, 0).unwrap_or(0);
    let status = fd::status_flags(new).unwrap_or(0);
    let cloexec = if flags as i32 & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    let given = fd::dup3(taken, new, cloexec).is_ok();
    if given {
        let _ = fd::fcntl(new, libc::F_SETFL, status as usize);
    }
    fd::close(taken);
    given.then_some([clc & u64::from(u32::MAX), clc >> 32])
}

impl Kept {
    /// Asks who keeps it for the connection, and bytes of CLC. Nothing is known of it here afterwards.
    fn ask(&self) -> Option<(i32, u64)> {
        let had = desk::ask(self.elder.load(Relaxed) as usize, [&self.key, &self.to].map(|word| word.load(Relaxed)));
        self.give_up();
        had
    }

    /// What is kept, which is the caller's now: the connection, the one of our own, bytes of CLC. None: it is another's.
    fn give_up(&self) -> Option<(i32, i32, u64)> {
        let key = self.key.load(Acquire);
        let all = (self.taken.load(Relaxed), self.ours.load(Relaxed), self.clc.load(Relaxed));
        let is_ours = key != 0 && self.key.compare_exchange(key, 0, AcqRel, Relaxed).is_ok();
        is_ours.then(|| {
            COUNT.fetch_sub(1, Relaxed);
            all
        })
    }
}

/// A child has accepted the stand-in with this key: the connection, and bytes of CLC. With the one of our own nothing is to be done any more.
pub(super) fn take_out([key, to]: [u64; 2]) -> Option<(i32, u64)> {
    let is_it = |k: &&Kept| k.key.load(Acquire) == key && k.to.load(Relaxed) == to && k.taken.load(Relaxed) >= 0;
    let kept = KEPT.iter().find(is_it)?;
    let (taken, ours, clc) = kept.give_up()?;
    fd::close(ours);
    Some((taken, clc))
}

/// A stand-in has ended, under whichever number: the listener is closed and the kernel has reset it with its queue, or a program without
/// the library has accepted it. Its client gets what it would have got.
pub(super) fn a_stand_in_ended() {
    let entered = gate::try_enter();
    for kept in KEPT.iter().filter(|k| k.key.load(Acquire) != 0 && k.ours.load(Relaxed) >= 0) {
        let ours = kept.ours.load(Relaxed);
        if entered.is_none() {
            service::watch_stand_in(ours, libc::EPOLL_CTL_MOD); // when the fork is over
            continue;
        }
        let has_ended = fd::poll_now(ours, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0;
        if has_ended && let Some((taken, ours, _)) = kept.give_up() {
            close::reset_on_close(taken);
            fd::close(taken);
            fd::close(ours);
        }
    }
}

/// Whether something is still to be asked of this elder.
fn is_asked(elder: usize) -> bool {
    let is_its = |k: &Kept| k.taken.load(Relaxed) < 0 && k.elder.load(Relaxed) as usize == elder;
    KEPT.iter().any(|k| k.key.load(Acquire) != 0 && is_its(k))
}

/// Descriptors that are kept here.
pub fn descriptors(add: &mut impl FnMut(i32)) {
    for k in KEPT.iter().filter(|k| k.key.load(Acquire) != 0) {
        add(k.ours.load(Relaxed));
        add(k.taken.load(Relaxed));
    }
}

/// A descriptor of ours has another number now; false if it is none of these.
pub fn moved(old: i32, new: i32) -> bool {
    desk::moved(old, new)
        || KEPT
            .iter()
            .filter(|k| k.key.load(Acquire) != 0)
            .any(|k| k.ours.compare_exchange(old, new, AcqRel, Relaxed).is_ok() || k.taken.compare_exchange(old, new, AcqRel, Relaxed).is_ok())
}

/// A forked child watches nothing; the parent keeps what is kept. It is asked for that where the child accepts a stand-in.
pub fn forget_in_child() {
    let all = || KEPT.iter().filter(|k| k.key.load(Relaxed) != 0);
    let elder = desk::forget_in_child(all().any(|k| k.taken.load(Relaxed) >= 0));
    for k in all().filter(|k| k.taken.load(Relaxed) >= 0) {
        [&k.ours, &k.taken].map(|place| place.swap(-1, Relaxed)).into_iter().filter(|fd| *fd >= 0).for_each(fd::close);
        k.elder.store(elder.map_or(u32::MAX, |elder| elder as u32), Relaxed);
    }
    for word in [&WATCHED, &TAKING] {
        word.store(0, Relaxed);
    }
}

impl Listener {
    /// A marked listener of this process.
    pub fn new(s: &'static Sock, sock: i32) -> Listener {
        WATCHED.fetch_add(1, Relaxed);
        let (generation, cookie) = (s.generation.load(Relaxed), net::cookie(sock).unwrap_or(0));
        Listener { s, generation, cookie, fd: sock, due: None }
    }

    /// Whether it is still the one that was marked.
    pub fn is_there(&self) -> bool {
        let same = self.s.generation.load(Relaxed) == self.generation && self.s.has(flag::MARKED) && net::cookie(self.fd) == Ok(self.cookie);
        if !same {
            WATCHED.fetch_sub(1, Relaxed);
        }
        same
    }

    /// Something has come, or is still there: patience that is not over goes on.
    pub fn heard(&mut self) {
        let (now, accepted) = (now(), self.accepted());
        let arrived = accepted.wrapping_add(self.waiting());
        let end = self.due.map(|d| d.end).filter(|end| end.0 > now).unwrap_or((now + PATIENCE, arrived));
        self.due = Some(Due { at: now + QUIET, end, before: (arrived, accepted) });
    }

    /// When to come again.
    pub fn timeout(&self) -> Option<Time> {
        self.due.map(|d| d.at)
    }

    /// Looks, if it is time; true: the queue is empty, and the next arrival is to be heard of.
    pub fn look(&mut self) -> bool {
        let now = now();
        let Some(due) = self.due.filter(|d| d.at <= now) else { return false };
        let late = match self.accepted() {
            accepted if accepted == due.before.1 && accepted > 0 => due.before.0.wrapping_sub(accepted),
            accepted if due.end.0 <= now => due.end.1.wrapping_sub(accepted),
            _ => 0,
        };
        if late as i32 > 0 && !self.take_some(late.min(self.waiting())) {
            self.due = Some(Due { at: now + SOON, ..due });
            return false;
        }
        if self.waiting() == 0 {
            self.due = None;
            return true;
        }
        self.heard();
        false
    }

    fn accepted(&self) -> u32 {
        self.s.tries.load(Relaxed)
    }

    /// Connections in the queue.
    fn waiting(&self) -> u32 {
        const UNACKED: usize = 6;
        net::get_opt::<[u32; 8]>(self.fd, libc::IPPROTO_TCP, libc::TCP_INFO).map_or(0, |info| info[UNACKED])
    }

    /// False: not now.
    fn take_some(&self, late: u32) -> bool {
        // A child would have what has been taken and not been noted yet.
        let Some(_entered) = gate::try_enter() else { return false };
        // What stands in for a client on a port that others listen at as well could come to one of those.
        let is_shared = net::get_opt::<i32>(self.fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) != Ok(0);
        if self.s.holders.load(Relaxed) != 1 || is_shared || !desk::open(is_asked) {
            return true;
        }
        TAKING.store(1, SeqCst); // pairs with `enter`
        let until = now() + declined::PROPOSALS;
        for _ in 0..late {
            // A blocking accept() must find something, and nobody else may take it.
            let ready = fd::poll_now(self.fd, libc::POLLIN) & libc::POLLIN != 0;
            if self.s.rx.in_kernel.load(SeqCst) != 0 || !ready || now() >= until || !self.take_one(until) {
                break;
            }
        }
        TAKING.store(0, SeqCst);
        true
    }

    fn take_one(&self, until: Time) -> bool {
        let Some((ours, own, to)) = self.stand_in() else { return false };
        let Ok(taken) = net::accept(self.fd) else {
            fd::close(ours);
            return false;
        };
        let (taken, clc) = match kept_by(taken) {
            None => (taken, None),
            Some(old) if old.taken.load(Relaxed) < 0 => {
                // A relative's, which is asked for what it stands for: that is kept here from now on.
                let had = old.ask();
                fd::close(taken);
                let Some((taken, clc)) = had else {
                    fd::close(ours); // as for who accepts it
                    return true;
                };
                (taken, Some(clc))
            }
            Some(old) => {
                // One of our own, which has waited as long: a new one in its place.
                fd::close(taken);
                fd::close(old.ours.swap(ours, Relaxed));
                old.to.store(to, Relaxed);
                old.key.store(own, Release);
                service::watch_stand_in(ours, libc::EPOLL_CTL_ADD);
                return true;
            }
        };
        let Some(free) = KEPT.iter().find(|k| k.key.load(Relaxed) == 0) else {
            // The one in its place says nothing.
            close::reset_on_close(taken);
            fd::close(taken);
            fd::close(ours);
            return false;
        };
        let clc = clc.or_else(|| declined::decline(taken, until));
        log::info!(target: "smcr::link", declined = clc.is_some(), "a connection waits for accept() for long");
        free.taken.store(fd::park(taken), Relaxed);
        free.ours.store(ours, Relaxed);
        free.clc.store(clc.unwrap_or(0), Relaxed);
        free.to.store(to, Relaxed);
        COUNT.fetch_add(1, Relaxed);
        free.key.store(own, Release);
        service::watch_stand_in(ours, libc::EPOLL_CTL_ADD);
        true
    }

    /// A connection of our own to the listener, and both its addresses.
    fn stand_in(&self) -> Option<(i32, u64, u64)> {
        if KEPT.iter().all(|k| k.key.load(Relaxed) != 0) {
            return None;
        }
        let local = net::local_addr(self.fd).ok()?.folded();
        let any = local.ip.iter().all(|b| *b == 0);
        let ip = match i32::from(local.family) {
            libc::AF_INET if !any => [local.ip[0], local.ip[1], local.ip[2], local.ip[3]],
            libc::AF_INET if any => [127, 0, 0, 1],
            // That address may be another listener's, else.
            libc::AF_INET6 if any && net::get_opt::<i32>(self.fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Ok(0) => [127, 0, 0, 1],
            _ => return None,
        };
        let mut raw = [0u8; 16];
        raw[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        raw[2..4].copy_from_slice(&local.port.to_be_bytes());
        raw[4..8].copy_from_slice(&ip);
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let ours = Brief::open(|| net::socket(libc::AF_INET, kind, 0)).ok()?;
        // One for the connection that it stands for, and one for the program.
        if !few::are_left(ours.fd(), 2) {
            return None;
        }
        let ours = fd::park(ours.keep());
        let made = matches!(net::with_addr(Sysno::connect, ours, &raw), Ok(_) | Err(Errno(libc::EINPROGRESS)));
        // Where the queue is full it is not connected yet, and has no peer that could be asked for.
        match net::local_addr(ours).ok().and_then(|a| key(&a)).filter(|_| made) {
            Some(own) => Some((ours, own, number(ip, local.port))),
            None => {
                fd::close(ours);
                None
            }
        }
    }
}

/// Address and port as one number; IPv4 alone.
fn key(addr: &net::Addr) -> Option<u64> {
    let a = (*addr).folded();
    let ip = [a.ip[0], a.ip[1], a.ip[2], a.ip[3]];
    (i32::from(a.family) == libc::AF_INET && a.port != 0).then(|| number(ip, a.port))
}

fn number(ip: [u8; 4], port: u16) -> u64 {
    1 << 63 | u64::from(u32::from_be_bytes(ip)) << 16 | u64::from(port)
}
