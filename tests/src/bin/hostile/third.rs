//! Owns: third parties: one that names a foreign connection, a relay, a server that announces what
//! is not its own.

use crate::diag::look_up;
use crate::link::{Link, PATIENCE, READY, abstract_address, connect, until};
use crate::region::{Kind, NONCE, Region, SERVER, at};
use crate::who::unshare;
use anyhow::{Context, Result, bail, ensure};
use smcr_proto::register::{announced, announcement, proof_rate};
use smcr_proto::rendezvous::{MAX_MESSAGE, Message, Offer, VERSION_HIGH, VERSION_LOW, channel_name};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::*;

fn set_pacing(tcp: &TcpStream, rate: u64) -> Result<()> {
    // SAFETY: eight bytes of ours.
    let r = unsafe { libc::setsockopt(tcp.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, (&raw const rate).cast(), 8) };
    ensure!(r == 0, "SO_MAX_PACING_RATE: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Names the connection between VICTIM (its own address) and the server, and claims its payload:
/// `foreign SERVER VICTIM`. Prints "taken" or "not taken"; fails if any of it comes here.
pub fn foreign(server: SocketAddr, args: &[String]) -> Result<()> {
    let victim: SocketAddr = args.first().context("victim")?.parse()?;
    let facts = until("announcement on the foreign connection", || Ok(look_up(server, victim).ok().filter(|f| announced(f.pacing).is_some())))?;
    let mut link = Link::new(server, Region::new(Kind::Right)?)?;
    let offer = Offer { versions: (VERSION_LOW, VERSION_HIGH), cookie: facts.cookie, id: 5, rate: proof_rate(99) };
    let taken = link.negotiate(offer)?;
    println!("{}", if taken { "taken" } else { "not taken" });
    std::io::stdout().flush()?;
    let r = &link.region;
    r.d32(1, at::CTL).fetch_or(READY, SeqCst);
    r.put(0, 0, &[0xee; 4096]);
    r.d64(0, at::HEAD).store(4096, SeqCst);
    // Marks everywhere that the victim's stream may come by, one after the other, without a proof.
    let mut at_kernel = 8;
    until("the end", || {
        r.d64(0, at::AT_KERNEL + 8).store(at_kernel, SeqCst);
        r.d32(0, at::SWITCH).store(1, SeqCst);
        at_kernel += 1000;
        ensure!(r.d64(1, at::HEAD).load(Acquire) == 0, "payload of a foreign connection came here");
        ensure!(r.u32(SERVER).load(Acquire) != 2, "proved without being the other end");
        // The kernel names the listener when the connection is gone.
        let gone = look_up(server, victim).map_or(true, |f| f.cookie != facts.cookie);
        Ok(gone.then_some(()))
    })?;
    ensure!(r.u64(NONCE).load(Relaxed) != 0 || !taken);
    Ok(())
}

/// Relays between a listener and the server, and shows the server's announcement as its own:
/// `relay SERVER PORT`.
pub fn relay(server: SocketAddr, args: &[String]) -> Result<()> {
    let port: u16 = args.first().context("port")?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let (inner, _) = listener.accept()?;
    let mut link = Link::new(server, Region::new(Kind::Right)?)?;
    set_pacing(&inner, link.facts.pacing)?;
    inner.set_nodelay(true)?;
    let outer = link.tcp.try_clone()?;
    let (mut a, mut b) = (inner.try_clone()?, outer.try_clone()?);
    let back = std::thread::spawn(move || std::io::copy(&mut b, &mut a));
    let (mut a, mut b) = (inner.try_clone()?, outer.try_clone()?);
    let _ = std::io::copy(&mut a, &mut b);
    let _ = outer.shutdown(std::net::Shutdown::Write);
    let _ = back.join();
    link.hear();
    Ok(())
}

/// An echo server that announces a channel of its own: `silent ADDRESS HOW` with HOW one of mute
/// (never accepts), deaf (accepts, never answers), lie (says that the nonce is on the socket when it
/// is not), garbage (answers nonsense), hangup (closes at the offer), nobody (the channel is
/// another uid's), nobody-lie (the same, and it lies), nowhere (no such channel).
pub fn silent(at: SocketAddr, args: &[String]) -> Result<()> {
    let how = args.first().context("how")?.clone();
    let name = u64::from(std::process::id()) << 8 | 7;
    let listener = TcpListener::bind(at)?;
    let channel = if how == "nowhere" { None } else { Some(listen_channel(name, &how)?) };
    let (mut tcp, _) = listener.accept()?;
    set_pacing(&tcp, announcement(name))?;
    tcp.set_nodelay(true)?;
    let answers = how != "mute" && how != "nobody";
    if let Some(channel) = &channel
        && answers
    {
        let (channel, how) = (channel.try_clone()?, how.clone());
        std::thread::spawn(move || answer(&channel, &how));
    }
    let mut buf = vec![0; 65536];
    loop {
        let n = tcp.read(&mut buf)?;
        if n == 0 {
            return Ok(());
        }
        tcp.write_all(&buf[..n])?;
    }
}

fn listen_channel(name: u64, how: &str) -> Result<OwnedFd> {
    let (addr, len) = abstract_address(&channel_name(name)[..15]);
    // SAFETY: plain system calls. SO_PEERCRED shows who called listen(2).
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let fd = OwnedFd::from_raw_fd(fd);
        ensure!(libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) == 0, "bind");
        if how.starts_with("nobody") {
            let child = libc::fork();
            if child == 0 {
                let failed = libc::setresuid(65534, 65534, 65534) != 0 || libc::listen(fd.as_raw_fd(), 100) != 0;
                libc::_exit(i32::from(failed));
            }
            let mut status = 0;
            libc::waitpid(child, &mut status, 0);
            ensure!(status == 0, "listen as nobody");
        } else {
            ensure!(libc::listen(fd.as_raw_fd(), 100) == 0, "listen");
        }
        Ok(fd)
    }
}

fn answer(channel: &OwnedFd, how: &str) -> Result<()> {
    loop {
        // SAFETY: plain system calls.
        let peer = unsafe { libc::accept(channel.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
        ensure!(peer >= 0, "accept");
        // SAFETY: fresh.
        let peer = unsafe { OwnedFd::from_raw_fd(peer) };
        let (raw, fds) = receive(&peer)?;
        let Ok((Message::Offer(offer), _)) = Message::parse(&raw) else { bail!("no offer") };
        println!("offer for {:x}", offer.cookie);
        match how {
            "hangup" => continue,
            "garbage" => {
                for n in 0..50usize {
                    let junk = vec![n as u8; 1 + n];
                    // SAFETY: a buffer of ours.
                    unsafe { libc::send(peer.as_raw_fd(), junk.as_ptr().cast(), junk.len(), libc::MSG_NOSIGNAL) };
                }
            }
            "lie" | "nobody-lie" => {
                let len = crate::region::LEN;
                let fd = fds.first().context("region")?.as_raw_fd();
                // SAFETY: a new mapping of the client's region, kept for ever.
                unsafe {
                    let p = libc::mmap(std::ptr::null_mut(), len, 3, libc::MAP_SHARED, fd, 0);
                    ensure!(p != libc::MAP_FAILED, "mmap");
                    (*p.cast::<u8>().add(crate::region::HEADER_AT + SERVER).cast::<std::sync::atomic::AtomicU32>()).store(1, SeqCst);
                }
            }
            _ => {}
        }
        std::mem::forget((peer, fds));
    }
}

fn receive(channel: &OwnedFd) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut raw = [0u8; MAX_MESSAGE];
    let mut control = [0u64; 16];
    let mut iov = libc::iovec { iov_base: raw.as_mut_ptr().cast(), iov_len: raw.len() };
    let mut fds = Vec::new();
    // SAFETY: buffers of ours live until the call returns; the kernel wrote what is walked.
    let n = unsafe {
        let mut msg: libc::msghdr = std::mem::zeroed();
        msg.msg_iov = &mut iov;
        msg.msg_iovlen = 1;
        msg.msg_control = control.as_mut_ptr().cast();
        msg.msg_controllen = size_of_val(&control);
        let n = libc::recvmsg(channel.as_raw_fd(), &mut msg, libc::MSG_CMSG_CLOEXEC);
        let c = libc::CMSG_FIRSTHDR(&msg);
        if n > 0 && !c.is_null() {
            for i in 0..((*c).cmsg_len - libc::CMSG_LEN(0) as usize) / 4 {
                fds.push(OwnedFd::from_raw_fd(libc::CMSG_DATA(c).cast::<i32>().add(i).read_unaligned()));
            }
        }
        n
    };
    ensure!(n > 0, "channel");
    Ok((raw[..n as usize].to_vec(), fds))
}

/// One that knows the name of the server and goes to another network namespace with it: `elsewhere SERVER`. Nothing of the server can be
/// reached there; the name can be held there, and says "came" if anybody does. Its own connection, which it still has, goes on. Says
/// "holds the name" and stays.
pub fn elsewhere(server: SocketAddr) -> Result<()> {
    let mut link = Link::new(server, Region::new(Kind::Right)?)?;
    let name = announced(link.facts.pacing).context("announcement")?;
    link.open_channel().context("where the server is")?;
    link.channel = None;
    // Root of a user namespace may do that.
    if unshare(libc::CLONE_NEWNET).is_err() {
        unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)?;
    }
    ensure!(look_up(server, link.tcp.local_addr()?).is_err(), "the server's socket is seen from another namespace");
    ensure!(link.open_channel().is_err(), "the server's name is reached from another namespace");
    let held = listen_channel(name, "deaf")?;
    std::thread::spawn(move || {
        let _ = answer(&held, "deaf");
        println!("came");
    });
    link.echo(30_000)?;
    println!("holds the name");
    std::io::stdout().flush()?;
    let end = std::time::Instant::now() + PATIENCE * 3;
    while std::time::Instant::now() < end {
        link.echo(8)?;
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Ok(())
}

/// A stranger that connects to every channel name it can find out and says nothing: `squat SERVER N`
/// holds N channels open until it is killed.
pub fn squat(server: SocketAddr, args: &[String]) -> Result<()> {
    let count: usize = args.first().context("count")?.parse()?;
    let mut link = Link::new(server, Region::new(Kind::Right)?)?;
    let mut held = Vec::new();
    for _ in 0..count {
        if link.open_channel().is_err() {
            break;
        }
        held.extend(link.channel.take());
        link.echo(8)?;
    }
    println!("holding {}", held.len());
    std::io::stdout().flush()?;
    let mut tcp = connect(server)?;
    let mut byte = [0];
    let _ = tcp.read(&mut byte); // until the deadline, or it is killed
    Ok(())
}
