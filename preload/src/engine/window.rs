//! The kernel's receive window, where it is closed in the middle of the proof.
//!
//! The proof is looked at before it is taken, and a part of it that lies unread keeps the buffer whose last bytes it is: together with
//! payload that was read, up to 64 KiB and more on the loopback. Where the receive buffer has then less room than one segment, the kernel
//! keeps its window closed, and the rest would not come before the part is taken, which must not happen before the rest was seen. So
//! there is made room for more, and the peer hears of it by a look that the kernel takes for a read.
//!
//! Called by [`super::proof`].

use crate::sys::net;
use libc::{MSG_DONTWAIT, MSG_PEEK, SO_RCVBUF, SO_RCVLOWAT, SOL_SOCKET, c_int};

/// Bytes of room: more than any buffer that was read and is kept.
const ROOM: c_int = 1 << 20;
/// Which buffer sizes the program has fixed (Linux 5.14, socket(7)).
const SO_BUF_LOCK: c_int = 72;

/// Opens the window. Of the program's settings nothing changes.
pub fn open(sock: c_int) {
    let get = |name| net::get_opt::<c_int>(sock, SOL_SOCKET, name);
    let set = |name, value: c_int| net::set_opt(sock, SOL_SOCKET, name, &value).is_ok();
    let (Ok(size), Ok(low)) = (get(SO_RCVBUF), get(SO_RCVLOWAT)) else { return };
    // For a mark that it has no room for the kernel makes the buffer larger, where the program has not fixed it.
    set(SO_RCVLOWAT, ROOM);
    set(SO_RCVLOWAT, low);
    if get(SO_RCVBUF).is_ok_and(|now| now > size) {
        return look(sock);
    }
    let fixed = get(SO_BUF_LOCK);
    set(SO_RCVBUF, ROOM);
    look(sock);
    set(SO_RCVBUF, size / 2); // the kernel doubles what it is told
    if let Ok(fixed) = fixed {
        set(SO_BUF_LOCK, fixed);
    }
}

/// After any read, and this is one to it, the kernel tells the peer of room that there is now.
fn look(sock: c_int) {
    let _ = net::recv_slice(sock, &mut [0; 1], MSG_PEEK | MSG_DONTWAIT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fd;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    const PROOF: usize = 16;

    /// A stream whose reader has read all but its last bytes, which its sender has sent in one piece: how many of them have come for
    /// good. Where the program has fixed the size of the receive buffer, and by chance.
    fn cut(listener: &TcpListener, chance: &mut u64) -> (usize, TcpStream, TcpStream) {
        let mut roll = |below: usize| {
            *chance ^= *chance << 13;
            *chance ^= *chance >> 7;
            *chance ^= *chance << 17;
            *chance as usize % below
        };
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut own = listener.accept().unwrap().0;
        peer.set_nonblocking(true).unwrap();
        own.set_nonblocking(true).unwrap();
        let (payload, mut sent, mut got) = (5000 + roll(5000), 0, 0);
        let (bytes, mut room) = ([0u8; 16384], [0u8; 16384]);
        while sent < payload + PROOF {
            let left = if sent < payload { (payload - sent).min(1 + roll(bytes.len())) } else { payload + PROOF - sent };
            match peer.write(&bytes[..left]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let most = (payload - got).min(1 + roll(room.len()));
                    got += own.read(&mut room[..most]).unwrap_or(0);
                }
                Err(e) => panic!("{e}"),
            }
        }
        let end = Instant::now() + Duration::from_secs(20);
        while got < payload {
            assert!(Instant::now() < end, "payload does not come");
            let most = (payload - got).min(1 + roll(room.len()));
            got += own.read(&mut room[..most]).unwrap_or(0);
        }
        let unread = || fd::unread(own.as_raw_fd()).unwrap();
        if unread() < PROOF {
            std::thread::sleep(Duration::from_millis(300)); // more than an acknowledgement is delayed by
        }
        (unread(), own, peer)
    }

    #[test]
    fn the_rest_comes_when_the_window_is_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        net::set_opt(listener.as_raw_fd(), SOL_SOCKET, SO_RCVBUF, &2304).unwrap();
        let mut chance = u64::from(std::process::id()) << 20 | 1;
        let end = Instant::now() + Duration::from_secs(60);
        let mut met = 0;
        while met < 4 {
            assert!(Instant::now() < end, "met {met} times");
            let (there, own, _peer) = cut(&listener, &mut chance);
            if there == PROOF {
                continue;
            }
            let sock = own.as_raw_fd();
            let is_fixed = met % 2 == 0;
            if !is_fixed {
                net::set_opt(sock, SOL_SOCKET, SO_BUF_LOCK, &0i32).unwrap();
            }
            let settings = || [SO_RCVLOWAT, SO_BUF_LOCK, SO_RCVBUF].map(|name| net::get_opt::<c_int>(sock, SOL_SOCKET, name));
            let before = settings();
            open(sock);
            let late = Instant::now() + Duration::from_secs(10);
            while fd::unread(sock).unwrap() < PROOF {
                assert!(Instant::now() < late, "{there} of {PROOF} bytes");
            }
            let same = if is_fixed { 3 } else { 2 };
            assert_eq!(settings()[..same], before[..same]);
            met += 1;
        }
    }
}
