//! The TCP stream below a handshake: reads and writes that leave its error to the program.
//!
//! The kernel tells an error once, to whoever calls next; a program that has the connection after that would take the reset for
//! an orderly end. Used by [`super::shake`].

use crate::sys::{Errno, Res, fd, net};
use smcr_proto::handshake::HELLO;
use smcr_proto::smc::clc::decline::LEN_V2;
use smcr_proto::smc::clc::{HEADER_LEN, Header, Kind};

/// recv(2) that does not wait.
pub(super) fn receive(sock: i32, buf: &mut [u8], flags: i32) -> Res<usize> {
    // What came before the error is read first.
    if fd::unread(sock) == Ok(0) && fd::is_broken(sock) {
        return Err(Errno(libc::ECONNRESET));
    }
    net::recv_slice(sock, buf, flags | libc::MSG_DONTWAIT)
}

/// Takes a greeting, and the Decline of a server that has waited behind it in vain, if nothing else lies there.
pub(super) fn drop_greeting(sock: i32) {
    let mut first = [0; HELLO.len()];
    match net::recv_slice(sock, &mut first, libc::MSG_DONTWAIT | libc::MSG_PEEK) {
        Ok(n) if first[..n] == HELLO[..n] => _ = net::recv_slice(sock, &mut first[..n], libc::MSG_DONTWAIT),
        _ => return,
    }
    let mut header = [0; HEADER_LEN];
    let Ok(n) = net::recv_slice(sock, &mut header, libc::MSG_DONTWAIT | libc::MSG_PEEK) else { return };
    let length = match Header::parse(&header[..n]) {
        Ok(h) if h.kind == Kind::Decline => usize::from(h.length),
        _ => return,
    };
    if length <= LEN_V2 {
        let _ = net::recv_slice(sock, &mut [0; LEN_V2][..length], libc::MSG_DONTWAIT);
    }
}

/// send(2) that does not wait.
pub(super) fn send(sock: i32, bytes: &[u8]) -> Res<usize> {
    if fd::is_broken(sock) {
        return Err(Errno(libc::ECONNRESET));
    }
    net::send_slice(sock, bytes, libc::MSG_DONTWAIT)
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
    fn what_a_server_said_in_vain_is_dropped_with_its_greeting() {
        use smcr_proto::smc::clc::decline::Decline;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut theirs = listener.accept().unwrap().0;
        let said = Decline::new(crate::link::rig::peer(1).peer_id, smcr_proto::smc::diagnosis::Diagnosis::TIMEOUT_CONFIRM_LINK);
        theirs.write_all(&[&HELLO[..], &said.emit()[..], b"x"].concat()).unwrap();
        let mut p = [libc::pollfd { fd: ours.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        assert_eq!(fd::poll(&mut p, 10_000), Ok(1));
        drop_greeting(ours.as_raw_fd());
        let mut buf = [0u8; 8];
        assert_eq!(ours.read(&mut buf).unwrap(), 1);
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
