//! What was taken up and is not sent again ([`super::take_up`]), where several programs have the connection: each has a copy of it
//! (`rendezvous::rest`), any of them may read, and each byte is for the first who does.
//!
//! How many were read stands on the socket, which is all that they share (SO_MAX_PACING_RATE, proto's [`Shared`]). Whoever reads takes up
//! there, and moves it. A lock of fcntl(2) on the socket keeps two processes apart, and ends with one that dies; threads of a process, and
//! relatives, have the receiving lock as well. Another value says that nothing is left: all was read, or it has gone on with a message
//! (`rendezvous::bequest`).
//!
//! While a program has such a copy the peer is asked for nothing: what it sent again would be there twice. Called by [`super::here`].

use super::here;
use super::rx::Step;
use super::{resets, signals};
use crate::control;
use crate::family::lock::Marker;
use crate::family::sock::{Sock, aside, flag, role};
use crate::sys::{Errno, Res, clock, fd, net, proc};
use crate::transport::region::Dir;
use smcr_proto::register::{Bequest, Shared};
use std::sync::atomic::Ordering::*;

/// How long a read of another program's may take that has the lock.
const PATIENCE_NS: u64 = 100_000_000;

/// Whether other programs have a copy of what is read here.
#[inline]
pub fn is_any(s: &Sock) -> bool {
    s.shared.load(Relaxed) != 0
}

/// The lock, for as long as this lives.
struct Alone(i32);

impl Alone {
    fn take(sock: i32) -> Option<Alone> {
        let until = clock::now_ns() + PATIENCE_NS;
        while let Err(e) = fd::lock(sock, libc::F_WRLCK) {
            if !matches!(e, Errno(libc::EAGAIN | libc::EACCES | libc::EINTR)) || clock::now_ns() > until {
                return None;
            }
            proc::yield_now();
        }
        Some(Alone(sock))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = fd::lock(self.0, libc::F_UNLCK);
    }
}

/// All that is unread, with `n` bytes of the ring, is read here from now on, and the socket tells how much of it was. The receiving lock is held.
/// False: what stands there is the program's, or it may come again.
pub fn begin(s: &Sock, sock: i32, dir: &Dir, n: usize) -> bool {
    if is_any(s) {
        return n == 0;
    }
    if control::is_restricted() || !is_free(s, sock) || !here::gather(s, dir, n) {
        return false;
    }
    let shared = Shared { number: Shared::number(clock::now_ns() >> 10), read: 0 };
    let is_told = shared.rate().is_some_and(|rate| tell(s, sock, rate).is_ok());
    if is_told {
        s.shared.store(shared.number, Relaxed);
    }
    is_told
}

/// From now on this stands on the socket, in the place of a proof's: what was there before that is given back no more (`rendezvous::server`).
pub fn tell(s: &Sock, sock: i32, rate: u64) -> Res {
    let before = s.rate_before.swap(0, Relaxed);
    net::set_rate(sock, rate).inspect_err(|_| s.rate_before.store(before, Relaxed))
}

/// Whether the register is not the program's own. A proof may stand there still (`rendezvous::server`).
pub fn is_free(s: &Sock, sock: i32) -> bool {
    net::rate(sock) == Ok(u64::MAX) || s.role.load(Relaxed) == role::SERVER && s.rate_before.load(Relaxed) == u64::MAX
}

/// What the others have left.
enum Left {
    /// From this place on.
    From(u32),
    Nothing,
    /// Nobody knows.
    Lost,
}

fn look(s: &Sock, sock: i32) -> Option<Left> {
    let rate = net::rate(sock).ok()?;
    Some(match Shared::parse(rate) {
        Some(shared) if shared.number == s.shared.load(Relaxed) => Left::From(shared.read),
        // Another one begins when this is over.
        Some(_) => Left::Nothing,
        None if rate == u64::MAX || Bequest::parse(rate).is_some() => Left::Nothing,
        None => Left::Lost, // the program has set its own
    })
}

/// With the receiving lock held: what the others have read was read.
fn catch_up(s: &Sock, sock: i32, dir: &Dir) -> Option<Left> {
    let left = look(s, sock)?;
    match left {
        Left::From(at) => here::is_read_to(s, at),
        Left::Nothing => here::is_over(s, dir),
        Left::Lost => {}
    }
    Some(left)
}

/// With the receiving lock held: runs `f` while no other program reads, behind what these have read. The step: it can't be done now.
pub fn alone<T>(s: &Sock, sock: i32, dir: &Dir, f: impl FnOnce() -> T) -> Result<T, Step> {
    if control::is_restricted() {
        return Err(Step::Failed(resets::broken(s, sock))); // the lock may be forbidden
    }
    // A handler that left it would leave the lock as well.
    signals::quietly(|| {
        // What is on its way with a message may come back.
        let is_sent = s.aside.load(Relaxed) & aside::SENDING != 0;
        let Some(_alone) = (!is_sent).then(|| Alone::take(sock)).flatten() else { return Err(Step::Empty) };
        match catch_up(s, sock, dir) {
            None => Err(Step::Empty), // no socket of ours any more
            Some(Left::Lost) => Err(Step::Failed(resets::broken(s, sock))),
            Some(_) => Ok(f()),
        }
    })
}

/// Inside [`alone`]: so many were read, or all of them.
pub fn have_read(s: &Sock, sock: i32, read: Option<u32>) -> Res {
    match s.shared.load(Relaxed) {
        0 => Ok(0),
        number => {
            let rate = read.and_then(|read| Shared { number, read }.rate());
            if rate.is_none() {
                calm(s, sock);
            }
            net::set_rate(sock, rate.unwrap_or(u64::MAX))
        }
    }
}

/// A holder that left some of it unread has closed, for which the last close would reset (`close`): it was read after all.
pub fn calm(s: &Sock, sock: i32) {
    let linger = net::get_opt::<libc::linger>(sock, libc::SOL_SOCKET, libc::SO_LINGER);
    if !s.has(flag::LINGER0) && linger.is_ok_and(|l| l.l_onoff != 0 && l.l_linger == 0) {
        let _ = net::set_opt(sock, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 0, l_linger: 0 });
    }
}

/// What is left after others have read, for who asks how much that is.
#[cold]
pub fn look_again(s: &Sock, sock: i32) {
    let marker = Marker::new();
    let (Some(dir), Some(_held)) = (s.rx.dir(), s.rx.lock.try_take(&marker)) else { return };
    if is_any(s) && s.aside.load(Relaxed) & aside::SENDING == 0 {
        let _ = catch_up(s, sock, dir); // of what is lost the next read tells
    }
}

/// No other program has it any more: the rest is this family's alone.
pub fn settle(s: &Sock, sock: i32) {
    let marker = Marker::new();
    let (Some(dir), Ok(_held)) = (s.rx.dir(), s.rx.lock.take(&marker)) else { return };
    if !is_any(s) {
        return;
    }
    let _ = alone(s, sock, dir, || {
        if is_any(s) && have_read(s, sock, None).is_ok() {
            s.shared.store(0, Relaxed);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::bufs::Bufs;
    use crate::transport::annex::Annex;
    use crate::transport::region::{self, RegionHeader};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// A program's record of a connection that has these bytes.
    fn program(bytes: &[u8]) -> (Box<Sock>, &'static Dir) {
        let (region, file) = region::make(region::RING_MIN).unwrap();
        fd::close(file);
        // SAFETY: a mapping that stays; all fields are atomics.
        let r: &'static RegionHeader = unsafe { &*region };
        // SAFETY: all zero is a fresh record.
        let s: Box<Sock> = unsafe { Box::new(std::mem::zeroed()) };
        let dir = &r.dirs[0];
        Annex::map(r, dir).unwrap().bytes()[..bytes.len()].copy_from_slice(bytes);
        dir.annex.store(bytes.len() as u64, Relaxed);
        s.region.store(region, Relaxed);
        s.rx.dir.store(std::ptr::from_ref(dir).cast_mut(), Relaxed);
        s.rx.ring.store(region::ring_of(region, 0, region::RING_MIN), Relaxed);
        s.rx.gate.store(1, Relaxed);
        (s, dir)
    }

    fn read(s: &Sock, sock: i32, dir: &Dir, n: usize) -> Option<Vec<u8>> {
        let mut to = vec![0; n];
        let part = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: n }];
        // SAFETY: memory of this test's.
        let bufs = unsafe { Bufs::new(&part) };
        match here::read(s, sock, dir, &bufs, 0, 0) {
            Some(Step::Moved(n)) => to.truncate(n),
            None => return None,
            Some(_) => panic!("neither read nor over"),
        }
        Some(to)
    }

    #[test]
    fn each_byte_is_for_the_first_who_reads_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sock = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let sock = sock.as_raw_fd();
        let ((own, own_dir), (next, next_dir)) = (program(b"0123456789"), program(b"0123456789"));
        assert!(!begin(&own, sock, own_dir, region::RING_MAX), "more than the ring can have");
        assert!(begin(&own, sock, own_dir, 0));
        here::is_left(&next, own.shared.load(Relaxed));
        assert_eq!(read(&own, sock, own_dir, 3).unwrap(), b"012");
        assert_eq!(read(&next, sock, next_dir, 4).unwrap(), b"3456");
        look_again(&own, sock);
        assert_eq!(here::left(&own, own_dir), 3);
        assert_eq!(here::again(&own, own_dir), None, "it is not asked for");
        assert_eq!(read(&own, sock, own_dir, 2).unwrap(), b"78");
        assert_eq!(read(&next, sock, next_dir, 9).unwrap(), b"9");
        assert!(!is_any(&next) && is_any(&own));
        assert_eq!(read(&own, sock, own_dir, 9), None, "TCP is next");
        assert!(!is_any(&own) && !here::is_here(&own));

        // One who was late finds what the others have begun anew.
        let ((own, own_dir), (next, next_dir)) = (program(b"ab"), program(b"ab"));
        assert!(begin(&own, sock, own_dir, 0));
        here::is_left(&next, own.shared.load(Relaxed) % 8191 + 1);
        assert_eq!(read(&next, sock, next_dir, 9), None);
        settle(&own, sock);
        assert!(!is_any(&own) && net::rate(sock) == Ok(u64::MAX));
        assert_eq!(read(&own, sock, own_dir, 9).unwrap(), b"ab");
    }

    #[test]
    fn a_rate_of_the_programs_own_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sock = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let sock = sock.as_raw_fd();
        let (own, dir) = program(b"ab");
        net::set_rate(sock, 1 << 30).unwrap();
        assert!(!begin(&own, sock, dir, 0));
        net::set_rate(sock, u64::MAX).unwrap();
        assert!(begin(&own, sock, dir, 0));
        net::set_rate(sock, 1 << 30).unwrap();
        assert!(alone(&own, sock, dir, || ()).is_err(), "how much was read is not known any more");
    }
}
