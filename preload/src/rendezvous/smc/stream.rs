//! The TCP stream below a handshake: reads and writes that leave its error to the program.
//!
//! The kernel tells an error once, to whoever calls next; a program that has the connection after that would take the reset for
//! an orderly end. Used by [`super::shake`].

use crate::sys::{Errno, Res, fd, net};
use smcr_proto::handshake::HELLO;

/// recv(2) that does not wait.
pub(super) fn receive(sock: i32, buf: &mut [u8], flags: i32) -> Res<usize> {
    // What came before the error is read first.
    if fd::unread(sock) == Ok(0) && is_broken(sock) {
        return Err(Errno(libc::ECONNRESET));
    }
    net::recv_slice(sock, buf, flags | libc::MSG_DONTWAIT)
}

/// Takes a greeting, if nothing else lies there.
pub(super) fn drop_greeting(sock: i32) {
    let mut first = [0; HELLO.len()];
    if let Ok(n) = net::recv_slice(sock, &mut first, libc::MSG_DONTWAIT | libc::MSG_PEEK)
        && first[..n] == HELLO[..n]
    {
        let _ = net::recv_slice(sock, &mut first[..n], libc::MSG_DONTWAIT);
    }
}

/// send(2) that does not wait.
pub(super) fn send(sock: i32, bytes: &[u8]) -> Res<usize> {
    if is_broken(sock) {
        return Err(Errno(libc::ECONNRESET));
    }
    net::send_slice(sock, bytes, libc::MSG_DONTWAIT)
}

/// ERR alone is the error queue.
fn is_broken(sock: i32) -> bool {
    const BOTH: i16 = libc::POLLERR | libc::POLLHUP;
    fd::poll_now(sock, 0) & BOTH == BOTH
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// A connection whose other end has sent `bytes` and then a reset.
    fn reset_after(bytes: &[u8]) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut theirs = listener.accept().unwrap().0;
        theirs.write_all(bytes).unwrap();
        let now = libc::linger { l_onoff: 1, l_linger: 0 };
        net::set_opt(theirs.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &now).unwrap();
        drop(theirs);
        let mut p = [libc::pollfd { fd: ours.as_raw_fd(), events: 0, revents: 0 }];
        assert_eq!(fd::poll(&mut p, 10_000), Ok(1));
        ours
    }

    #[test]
    fn a_reset_is_the_programs_to_hear() {
        let mut ours = reset_after(b"abc");
        let (sock, mut buf) = (ours.as_raw_fd(), [0u8; 8]);
        assert_eq!(receive(sock, &mut buf, libc::MSG_PEEK), Ok(3));
        assert_eq!(receive(sock, &mut buf, 0), Ok(3));
        assert_eq!(receive(sock, &mut buf, 0), Err(Errno(libc::ECONNRESET)));
        assert_eq!(receive(sock, &mut buf, libc::MSG_PEEK), Err(Errno(libc::ECONNRESET)));
        assert_eq!(send(sock, b"x"), Err(Errno(libc::ECONNRESET)));
        let told = ours.read(&mut buf).unwrap_err();
        assert_eq!(told.raw_os_error(), Some(libc::ECONNRESET));
    }
}
