//! What lies unread of a peer that has said its last word, when a message over a Unix socket takes the descriptor to another process.
//!
//! As for a next program ([`super::rest`]) it goes into a file. The sender keeps that open until somebody has taken it, and the socket's
//! register (SO_MAX_PACING_RATE) says where it is (`proto`'s `Bequest`); who receives the descriptor opens the file through /proc. The kernel
//! has only the end to show, before which bytes are missing then: a receiver without the library, or one that comes too late, gets a reset.
//! Called by `table::passed`.

use super::rest::{self, NAMES, Rest};
use crate::engine::{heirs, here};
use crate::family::sock::{Sock, aside};
use crate::log;
use crate::sys::{Errno, clock, fd, mem, net, proc, users};
use crate::transport::region::{self, LEN, setup};
use smcr_proto::register::{Bequest, Shared};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

/// Files of this process that nobody has taken yet, or -1. More at once are not left: what they would hold is lost, and seen to be.
static FILES: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];
/// Who has left them: a forked child has copies.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// How long a process that ends waits for those who have been sent them.
const AT_EXIT_NS: u64 = 2_000_000_000;
const NAME: &[u8] = b"/memfd:smcr-rest (deleted)";
/// In place of the names that the connection had.
const TAKEN: u64 = 1;

/// Before `over` sends the descriptor, if what is unread can be left, and whoever may receive it would find it. It is for the first who does.
pub fn leave(s: &Sock, sock: i32, over: i32) {
    if !rest::is_last(s) || is_left(s) {
        return;
    }
    forget_taken();
    let Some(place) = FILES.iter().find(|f| f.load(Relaxed) < 0) else { return };
    if !(heirs::is_any(s) || heirs::is_free(s, sock)) || !users::of_peer_have_library(over) {
        return;
    }
    if rest::is_for_relatives(s) && !here::share(s, sock) {
        return; // they are to see that it has gone
    }
    let mut kept = -1;
    // While nobody reads: what others have a copy of is the receiver's alone from here on.
    let keep = |file| {
        kept = fd::another(file)?;
        let rate = Bequest { pid: proc::pid(), file: kept as u32 }.rate().ok_or(Errno(libc::EINVAL))?;
        if heirs::is_any(s) {
            heirs::calm(s, sock);
        }
        heirs::tell(s, sock, rate).map(drop)
    };
    let left = rest::write(s, sock, [0; NAMES], setup::REST, keep);
    if left == Ok(true) {
        place.store(kept, Relaxed);
        OWNER.store(proc::pid(), Relaxed);
        s.aside.fetch_or(aside::PASSED | aside::SENDING, Relaxed);
        return rest::has_gone(s);
    }
    if kept >= 0 {
        fd::close_own(kept);
    }
    log::warn!(target: "smcr::switch", fd = sock, errno = left.err().map_or(0, |Errno(e)| e), "what is unread does not go with the message");
}

/// Whether it has been.
pub fn is_left(s: &Sock) -> bool {
    s.aside.load(Relaxed) & aside::PASSED != 0
}

/// The message was sent.
pub fn sent(s: &Sock) {
    if is_left(s) {
        s.aside.fetch_and(!aside::SENDING, Relaxed);
    }
}

/// It was not: what would have gone with it is read here. What has gone with another one stays there.
pub fn take_back(s: &Sock, sock: i32) {
    if s.aside.load(Relaxed) & aside::SENDING == 0 {
        return;
    }
    if let Some(own) = of(sock).filter(|b| b.pid == proc::pid()) {
        let _ = net::set_rate(sock, here::shared(s).and_then(Shared::rate).unwrap_or(u64::MAX));
        FILES.iter().filter(|f| f.load(Relaxed) == own.file as i32).for_each(give_up);
        rest::is_kept(s);
    }
    s.aside.fetch_and(!(aside::PASSED | aside::SENDING), Relaxed);
}

/// What stands on a socket that was received.
pub fn of(sock: i32) -> Option<Bequest> {
    net::rate(sock).ok().and_then(Bequest::parse)
}

/// It is for this process.
pub fn take(left: Bequest, sock: i32) -> Option<Rest> {
    if users::link_of(left.pid, left.file, &mut [0; 64]) != Some(NAME) {
        return None;
    }
    let file = users::open_of(left.pid, left.file).ok()?;
    if !mem::is_safe_memfd(file, region::FILE_LEN) {
        fd::close(file);
        return None;
    }
    let rest = rest::open(file).ok()?;
    if net::cookie(sock) != Ok(rest.cookie) {
        rest.drop();
        return None;
    }
    rest.mark(TAKEN);
    let _ = net::set_rate(sock, u64::MAX);
    Some(rest)
}

/// Nobody gets it.
pub fn lose(sock: i32) {
    let _ = net::disconnect(sock); // so that the next call fails
}

/// The files end with the process.
pub fn at_exit() {
    let is_any = || FILES.iter().any(|f| f.load(Relaxed) >= 0);
    if !is_any() || OWNER.load(Relaxed) != proc::pid() {
        return;
    }
    let until = clock::now_ns() + AT_EXIT_NS;
    loop {
        forget_taken();
        if !is_any() || clock::now_ns() >= until {
            return;
        }
        let _ = fd::poll(&mut [], 2);
    }
}

fn forget_taken() {
    for file in FILES.iter().filter(|f| f.load(Relaxed) >= 0) {
        let taken = region::map(file.load(Relaxed)).is_ok_and(|p| {
            // SAFETY: a fresh mapping; all fields are atomics.
            let taken = unsafe { &*p }.nonce[1].load(Relaxed) == TAKEN;
            mem::unmap(region::start_of(p), LEN);
            taken
        });
        if taken {
            give_up(file);
        }
    }
}

fn give_up(file: &AtomicI32) {
    fd::close_own(file.swap(-1, Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::region::{FILE_LEN, MAGIC};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// As `rest::write` makes it.
    fn file(name: &std::ffi::CStr, cookie: u64, what: u32) -> i32 {
        let file = mem::memfd(name, FILE_LEN).unwrap();
        let p = region::map(file).unwrap();
        // SAFETY: a fresh mapping; all fields are atomics.
        let r = unsafe { &*p };
        r.magic.store(MAGIC, Relaxed);
        r.server.store(what, Relaxed);
        r.nonce[0].store(cookie, Relaxed);
        mem::unmap(region::start_of(p), LEN);
        file
    }

    #[test]
    fn a_file_is_taken_once_by_its_name_for_its_own_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sock = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cookie = net::cookie(sock.as_raw_fd()).unwrap();
        let take = |file: i32| {
            let left = Bequest { pid: std::process::id(), file: file as u32 };
            net::set_rate(sock.as_raw_fd(), left.rate().unwrap()).unwrap();
            assert_eq!(of(sock.as_raw_fd()), Some(left));
            let taken = take(left, sock.as_raw_fd()).map(Rest::drop).is_some();
            assert_eq!(of(sock.as_raw_fd()).is_none(), taken);
            taken
        };
        let own = file(c"smcr-rest", cookie, setup::REST);
        assert!(take(own));
        FILES[0].store(own, Relaxed);
        forget_taken();
        assert_eq!(FILES[0].load(Relaxed), -1, "its sender gives it up");
        assert!(!take(own), "it is closed");
        assert!(!take(file(c"smcr-rest", cookie + 1, setup::REST)), "another connection's");
        assert!(!take(file(c"smcr-rest", cookie, setup::NONCE)), "a region in use");
        assert!(!take(file(c"smcr-region", cookie, setup::REST)), "by another name");
        let plain = mem::memfd(c"smcr-rest", 4096).unwrap();
        assert!(!take(plain), "of another size");
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(!take(null.as_raw_fd()));
    }
}
