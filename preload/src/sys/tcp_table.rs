//! The kernel's table of TCP sockets as text (/proc/net/tcp), for who may not ask by netlink. A look costs with the number of sockets.
//!
//! Called by `rendezvous::owner`.

use super::few::Brief;
use super::net::Addr;
use super::{Res, fd, lines};

/// So much of the table is read: some 28,000 sockets, of which many may be left behind by closed connections (TIME_WAIT). About 40 ms.
const MOST: usize = 4 << 20;

/// The uid of the established socket whose own address is `own` and whose peer is `peer`.
pub fn owner(own: &Addr, peer: &Addr) -> Option<u32> {
    let is_v4 = i32::from(own.family) == libc::AF_INET;
    let path = if is_v4 { c"/proc/self/net/tcp" } else { c"/proc/self/net/tcp6" };
    let table = Brief::open(|| fd::open_read(path)).ok()?;
    // SAFETY: the slice is valid for writes.
    search(own, peer, |buf| unsafe { fd::read(table.fd(), buf.as_mut_ptr(), buf.len()) })
}

fn search(own: &Addr, peer: &Addr, mut read: impl FnMut(&mut [u8]) -> Res) -> Option<u32> {
    let mut all = 0;
    let read_most = |buf: &mut [u8]| {
        let n = if all < MOST { read(buf)? } else { 0 };
        all += n;
        Ok(n)
    };
    lines::find(read_most, |line| of_line(line, own, peer)).ok().flatten()
}

/// Number, addresses, state, queues, timer, retransmits, uid, ...
fn of_line(line: &[u8], own: &Addr, peer: &Addr) -> Option<u32> {
    let mut fields = line.split(|b| *b == b' ').filter(|f| !f.is_empty());
    let (_number, local, remote) = (fields.next()?, fields.next()?, fields.next()?);
    if !is(local, own) || !is(remote, peer) {
        return None;
    }
    std::str::from_utf8(fields.nth(4)?).ok()?.parse().ok()
}

/// Words of the address as the processor has them, and the port, in hexadecimal.
fn is(text: &[u8], addr: &Addr) -> bool {
    let words = if i32::from(addr.family) == libc::AF_INET { 1 } else { 4 };
    if text.len() != words * 8 + 5 || text[words * 8] != b':' {
        return false;
    }
    let number = |digits: &[u8]| std::str::from_utf8(digits).ok().and_then(|t| u32::from_str_radix(t, 16).ok());
    let is_word = |i: usize| {
        let bytes = [0, 1, 2, 3].map(|b| addr.ip[4 * i + b]);
        number(&text[8 * i..8 * i + 8]) == Some(u32::from_ne_bytes(bytes))
    };
    (0..words).all(is_word) && number(&text[words * 8 + 1..]) == Some(u32::from(addr.port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{net, proc};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn shows_its_owner(listener: TcpListener) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        let (local, remote) = (net::local_addr(server.as_raw_fd()).unwrap(), net::peer_addr(server.as_raw_fd()).unwrap());
        assert_eq!(owner(&remote, &local), Some(proc::euid()));
        drop(client);
        assert_eq!(owner(&Addr { port: 1, ..remote }, &local), None);
    }

    #[test]
    fn both_families() {
        shows_its_owner(TcpListener::bind("127.0.0.1:0").unwrap());
        if let Ok(listener) = TcpListener::bind("[::1]:0") {
            shows_its_owner(listener);
        }
    }

    /// Lines that come in pieces of any size.
    #[test]
    fn a_line_in_pieces() {
        let mut text = b"  sl  local_address rem_address   st\n".to_vec();
        for uid in 0..200 {
            let line = format!("{uid:4}: 0100007F:{:04X} 0100007F:1F90 01 00000000:00000000 00:00000000 00000000 {uid:5}        0 1 1\n", 1000 + uid);
            text.extend(line.bytes());
        }
        let at = |port| Addr { family: libc::AF_INET as u16, port, ip: [127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], scope: 0 };
        for size in [1, 7, 150, 4096] {
            let mut left = &text[..];
            let found = search(&at(1150), &at(8080), |buf| {
                let n = left.len().min(size).min(buf.len());
                buf[..n].copy_from_slice(&left[..n]);
                left = &left[n..];
                Ok(n)
            });
            assert_eq!(found, Some(150));
        }
    }
}
