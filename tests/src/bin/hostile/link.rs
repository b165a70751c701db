//! Owns: a client that speaks the rendezvous by itself: look-up, channel, offer, proof, rings.

use crate::diag::{Facts, look_up};
use crate::region::{Region, SERVER, at};
use anyhow::{Context, Result, bail, ensure};
use smcr_proto::register::{announced, proof_rate};
use smcr_proto::rendezvous::{MAX_MESSAGE, Message, Offer, channel_name};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

pub const READY: u32 = 1;
/// Values of the doorbell word.
const ARMED: u32 = 1;
const RINGING: u32 = 2;
const RUNG: u32 = 3;
const EACH: u32 = 4;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Link {
    pub tcp: TcpStream,
    /// Bytes of the kernel's stream that we sent.
    pub sent: u64,
    pub channel: Option<OwnedFd>,
    pub region: Region,
    pub facts: Facts,
    /// Descriptors that came.
    pub bells: Vec<OwnedFd>,
    /// Reasons of the answers that came.
    pub answers: Vec<Message>,
    /// The library closed the channel.
    pub hung_up: bool,
    /// The server sends in memory, and goes on to: what comes over TCP is no payload.
    pub in_memory: bool,
}

pub fn until<T>(what: &str, mut f: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(v) = f()? {
            return Ok(v);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    bail!("{what}: not within the deadline")
}

/// Sends `n` bytes and reads them back: the server works, and its library takes its steps.
pub fn echo(tcp: &mut TcpStream, n: usize) -> Result<()> {
    let bytes: Vec<u8> = (0..n).map(|i| i as u8 ^ 0x5a).collect();
    tcp.write_all(&bytes)?;
    let mut back = vec![0; n];
    tcp.read_exact(&mut back)?;
    ensure!(back == bytes, "the echo differs");
    Ok(())
}

pub fn connect(to: SocketAddr) -> Result<TcpStream> {
    let tcp = TcpStream::connect(to)?;
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    tcp.set_write_timeout(Some(PATIENCE))?;
    Ok(tcp)
}

impl Link {
    /// Connects and waits till the server has announced itself.
    pub fn new(to: SocketAddr, region: Region) -> Result<Link> {
        let mut tcp = connect(to)?;
        let mut sent = 0;
        let facts = until("announcement", || {
            echo(&mut tcp, 8)?;
            sent += 8;
            Ok(look_up(tcp.peer_addr()?, tcp.local_addr()?).ok().filter(|f| announced(f.pacing).is_some()))
        })?;
        Ok(Link { tcp, sent, channel: None, region, facts, bells: vec![], answers: vec![], hung_up: false, in_memory: false })
    }

    pub fn echo(&mut self, n: usize) -> Result<()> {
        self.sent += n as u64;
        echo(&mut self.tcp, n)
    }

    pub fn open_channel(&mut self) -> Result<()> {
        let name = announced(self.facts.pacing).context("announcement")?;
        self.channel = Some(seqpacket(&channel_name(name)[..15])?);
        Ok(())
    }

    pub fn offer(&self, versions: (u16, u16), cookie: u64) -> Offer {
        Offer { versions, cookie, id: 77, rate: proof_rate(self.facts.cookie << 7 | 1) }
    }

    /// Sends an offer and works on until the server took it (true), or refused or ignored it.
    pub fn negotiate(&mut self, offer: Offer) -> Result<bool> {
        self.open_channel()?;
        let mut raw = [0; MAX_MESSAGE];
        let n = Message::Offer(offer).emit(&mut raw, false);
        self.tell(&raw[..n], &[self.region.fd.as_raw_fd()])?;
        self.settled()
    }

    /// Works on until the server has answered an offer in one way or another.
    pub fn settled(&mut self) -> Result<bool> {
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            self.echo(8)?;
            self.hear();
            if self.region.u32(SERVER).load(Acquire) == 1 {
                return Ok(true);
            }
            if self.hung_up || !self.answers.is_empty() {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(false)
    }

    /// The proof in the stream, and from then on the ring.
    pub fn prove(&mut self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.region.d32(0, at::CTL).load(Acquire) & READY == 0 {
            ensure!(Instant::now() < end, "the server never became ready");
            self.echo(8)?;
        }
        let mut nonce = [0; 16];
        for i in 0..2 {
            let part = self.region.u64(crate::region::NONCE + 8 * i).load(Relaxed);
            nonce[8 * i..8 * i + 8].copy_from_slice(&part.to_le_bytes());
        }
        self.mark(1);
        self.send_raw(&nonce)?;
        until("proof taken", || Ok((self.region.u32(SERVER).load(Acquire) == 2).then_some(())))
    }

    /// Says that the stream goes on in the ring from here.
    pub fn mark(&self, switch: u32) {
        self.region.d64(0, at::AT_KERNEL + 8 * switch as usize).store(self.sent, Relaxed);
        let head = self.region.d64(0, at::HEAD).load(Relaxed);
        self.region.d64(0, at::AT_RING + 8 * switch as usize).store(head, Relaxed);
        self.region.d32(0, at::SWITCH).store(switch, SeqCst);
    }

    pub fn send_raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.sent += bytes.len() as u64;
        Ok(self.tcp.write_all(bytes)?)
    }

    /// Sends through the ring.
    pub fn ring(&mut self, bytes: &[u8]) {
        let head = self.region.d64(0, at::HEAD).load(Relaxed);
        self.region.put(0, head, bytes);
        self.region.d64(0, at::HEAD).store(head + bytes.len() as u64, SeqCst);
        self.wake();
    }

    /// Wakes the server, however it sleeps.
    pub fn wake(&mut self) {
        self.hear();
        if self.region.d32(0, at::SWITCH).load(Relaxed) & 1 == 0 {
            return; // a byte would be payload
        }
        let word = self.region.d32(0, at::BELL);
        let each = word.load(Relaxed) == EACH;
        if each || word.compare_exchange(ARMED, RINGING, SeqCst, Relaxed).is_ok() {
            if self.tcp.write(&[0xb7]).is_ok_and(|n| n == 1) {
                self.sent += 1;
                self.region.d32(0, at::BELLS).fetch_add(1, SeqCst);
            }
            if !each {
                let _ = word.compare_exchange(RINGING, RUNG, SeqCst, Relaxed);
            }
        }
        for bell in &self.bells {
            // SAFETY: eight bytes of ours.
            unsafe { libc::write(bell.as_raw_fd(), 1u64.to_ne_bytes().as_ptr().cast(), 8) };
        }
    }

    /// Waits for the echo of `want`, through whichever medium the server uses: the ring once it has
    /// switched and the stream has been read up to the mark.
    pub fn expect(&mut self, want: &[u8]) -> Result<()> {
        let mut got = Vec::new();
        self.tcp.set_nonblocking(true)?;
        let end = Instant::now() + PATIENCE;
        while got.len() < want.len() && Instant::now() < end {
            let mut buf = [0; 4096];
            match self.tcp.read(&mut buf) {
                Ok(0) => bail!("the server closed"),
                Ok(_) if self.in_memory => {} // doorbells
                Ok(n) => got.extend_from_slice(&buf[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
            let r = &self.region;
            if r.d32(1, at::SWITCH).load(Acquire) & 1 == 1 {
                r.d32(1, at::PASSED).store(r.d32(1, at::SWITCH).load(Relaxed), Relaxed);
                let (head, tail) = (r.d64(1, at::HEAD).load(Acquire), r.d64(1, at::TAIL).load(Relaxed));
                let mut part = vec![0; (head - tail) as usize];
                r.take(1, tail, &mut part);
                got.extend_from_slice(&part);
                r.d64(1, at::TAIL).store(head, SeqCst);
            }
            self.wake();
            std::thread::sleep(Duration::from_micros(50));
        }
        self.tcp.set_nonblocking(false)?;
        ensure!(got == want, "{} bytes came back, {} were sent; the first: {:?}", got.len(), want.len(), &got[..got.len().min(8)]);
        Ok(())
    }

    /// Whether the server's end of the TCP connection is reset or closed.
    pub fn is_over(&mut self) -> bool {
        let _ = self.tcp.set_nonblocking(true);
        let mut buf = [0; 4096];
        let over = loop {
            match self.tcp.read(&mut buf) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(e) => break e.kind() != ErrorKind::WouldBlock,
            }
        };
        let _ = self.tcp.set_nonblocking(false);
        over
    }

    pub fn tell(&self, bytes: &[u8], fds: &[i32]) -> Result<()> {
        send_with(self.channel.as_ref().context("channel")?.as_raw_fd(), bytes, fds)
    }

    /// Takes what the server says.
    pub fn hear(&mut self) {
        let Some(channel) = self.channel.as_ref().map(|c| c.as_raw_fd()) else {
            return;
        };
        loop {
            let mut raw = [0u8; MAX_MESSAGE];
            let mut control = [0u64; 16];
            let mut iov = libc::iovec { iov_base: raw.as_mut_ptr().cast(), iov_len: raw.len() };
            // SAFETY: as in `tell`; the kernel wrote the control messages that are walked.
            let n = unsafe {
                let mut msg: libc::msghdr = std::mem::zeroed();
                msg.msg_iov = &mut iov;
                msg.msg_iovlen = 1;
                msg.msg_control = control.as_mut_ptr().cast();
                msg.msg_controllen = size_of_val(&control);
                let n = libc::recvmsg(channel, &mut msg, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
                if n > 0 {
                    let c = libc::CMSG_FIRSTHDR(&msg);
                    if !c.is_null() && (*c).cmsg_type == libc::SCM_RIGHTS {
                        let count = ((*c).cmsg_len - libc::CMSG_LEN(0) as usize) / 4;
                        for i in 0..count {
                            let fd = libc::CMSG_DATA(c).cast::<i32>().add(i).read_unaligned();
                            self.bells.push(OwnedFd::from_raw_fd(fd));
                        }
                    }
                }
                n
            };
            match n {
                1.. => {
                    if let Ok((m @ Message::Answer(_), _)) = Message::parse(&raw[..n as usize]) {
                        self.answers.push(m);
                    }
                }
                0 => {
                    self.hung_up = true;
                    return;
                }
                _ => return,
            }
        }
    }
}

/// Sends bytes with descriptors over a Unix socket.
pub fn send_with(socket: i32, bytes: &[u8], fds: &[i32]) -> Result<()> {
    let mut control = [0u64; 64];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is valid; all buffers live until the call returns; the control
    // buffer has room for 100 descriptors.
    let n = unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_iov = &mut iov;
        msg.msg_iovlen = 1;
        if !fds.is_empty() {
            assert!(fds.len() <= 100);
            let len = size_of_val(fds) as u32;
            msg.msg_control = control.as_mut_ptr().cast();
            msg.msg_controllen = libc::CMSG_SPACE(len) as usize;
            let c = libc::CMSG_FIRSTHDR(&msg);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(len) as usize;
            std::ptr::copy_nonoverlapping(fds.as_ptr(), libc::CMSG_DATA(c).cast(), fds.len());
        }
        libc::sendmsg(socket, &msg, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    ensure!(n >= 0, "channel: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Connects to an abstract name.
pub fn seqpacket(name: &[u8]) -> Result<OwnedFd> {
    // SAFETY: sockaddr_un is plain data; the length covers what was filled in.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        ensure!(fd >= 0, "socket: {}", std::io::Error::last_os_error());
        let fd = OwnedFd::from_raw_fd(fd);
        let (addr, len) = abstract_address(name);
        let r = libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len);
        ensure!(r == 0, "connect to the channel: {}", std::io::Error::last_os_error());
        Ok(fd)
    }
}

pub fn abstract_address(name: &[u8]) -> (libc::sockaddr_un, u32) {
    // SAFETY: plain data.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as u16;
    for (to, from) in addr.sun_path[1..].iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    (addr, (3 + name.len()) as u32)
}
