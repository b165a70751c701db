//! What poll would say where it takes no descriptors: no more of them than RLIMIT_NOFILE says, which a sandbox sets to 0.
//!
//! Called by `sys::fd` in place of poll. select has no such limit: it tells what may be read and written, and TCP's state the end. Descriptors from
//! [`MOST`] on, our own among them, are not seen: who waits for these looks again each millisecond.

use super::tcp_state::{self, CLOSE, CLOSE_WAIT, CLOSING, LAST_ACK, TIME_WAIT};
use super::{Res, Sysno, call, fd};
use libc::{c_int, pollfd};

/// Most of select.
const MOST: usize = 1024;

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;
const END: i16 = libc::POLLRDHUP;

/// As poll(2); `timeout` in milliseconds.
#[cold]
pub fn poll(fds: &mut [pollfd], timeout: c_int) -> Res {
    let mut left = timeout;
    loop {
        let n = fds.iter_mut().map(look).filter(|any| *any).count();
        if n > 0 || left == 0 {
            return Ok(n);
        }
        let ts = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        // SAFETY: no descriptors, and the timespec lives through the call.
        unsafe { call(Sysno::ppoll, [0, 0, &raw const ts as usize, 0, 8, 0]) }?;
        left = if left < 0 { left } else { left - 1 };
    }
}

/// Fills revents; whether there is anything.
fn look(p: &mut pollfd) -> bool {
    p.revents = match usize::try_from(p.fd) {
        Ok(fd) if fd < MOST => now(p.fd, p.events),
        _ => 0,
    };
    p.revents != 0
}

fn now(number: c_int, events: i16) -> i16 {
    // select leaves bits as they are that lie behind the process's table.
    if !fd::is_open(number) {
        return libc::POLLNVAL;
    }
    let mut sets = [[0u64; MOST / 64]; 3];
    for set in &mut sets {
        set[number as usize / 64] |= 1 << (number % 64);
    }
    let [r, w, x] = sets.each_mut().map(|set| set.as_mut_ptr() as usize);
    let ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: three sets of 1024 bits and a timespec that live through the call, no mask.
    if unsafe { call(Sysno::pselect6, [number as usize + 1, r, w, x, &raw const ts as usize, 0]) }.is_err() {
        return libc::POLLNVAL;
    }
    let [readable, writable, urgent] = sets.map(|set| set[number as usize / 64] >> (number % 64) & 1 != 0);
    let told = [(readable, IN), (writable, OUT), (urgent, libc::POLLPRI)];
    let bits = told.iter().filter(|(is, _)| *is).fold(0, |all, (_, bits)| all | bits);
    (bits | end_of(number)) & (events | libc::POLLHUP | libc::POLLERR)
}

/// The end that a TCP socket shows.
fn end_of(fd: c_int) -> i16 {
    match tcp_state::of(fd) {
        Ok(CLOSE) => END | libc::POLLHUP | libc::POLLERR,
        Ok(TIME_WAIT | CLOSE_WAIT | LAST_ACK | CLOSING) => END,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn bits(s: &TcpStream) -> i16 {
        let mut p = [pollfd { fd: s.as_raw_fd(), events: IN | OUT | END | libc::POLLPRI, revents: 0 }];
        assert!(poll(&mut p, 0).is_ok());
        p[0].revents
    }

    #[test]
    fn it_says_what_poll_says() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let a = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        let (mut b, _) = listener.accept().expect("its other end");
        assert_eq!(bits(&a), OUT);
        b.write_all(b"x").expect("a byte");
        let mut p = [pollfd { fd: a.as_raw_fd(), events: IN, revents: 0 }];
        assert_eq!(poll(&mut p, 5000), Ok(1));
        assert_eq!(bits(&a), IN | OUT);
        drop(b);
        let mut p = [pollfd { fd: a.as_raw_fd(), events: END, revents: 0 }];
        assert_eq!(poll(&mut p, 5000), Ok(1));
        assert_eq!(bits(&a), IN | OUT | END);
    }

    #[test]
    fn what_is_not_open_is_told_and_what_is_beyond_is_silent() {
        let mut p = [pollfd { fd: 1023, events: IN, revents: 0 }, pollfd { fd: 1024, events: IN, revents: 0 }];
        assert_eq!(poll(&mut p, 0), Ok(1));
        assert_eq!([p[0].revents, p[1].revents], [libc::POLLNVAL, 0]);
    }
}
