//! Owns: what a peer of another user does to the wakes of others: with what it was given to wake the server by, and with
//! what it gives the server to be woken by. It runs as nobody.

use crate::attacks::establish;
use crate::link::{Link, PATIENCE, connect, until};
use crate::region::at;
use anyhow::{Context, Result, bail, ensure};
use smcr_proto::rendezvous::{Bell, MAX_MESSAGE, Message};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

/// Bytes of a page of sleep words, with the log of posts behind them.
const PAGE: usize = 128 * 64 + 4096 + 4096 + 4096 * 8;
/// The first waiter of the page, in its first generation.
pub const WAITER: Bell = Bell { slot: 0, generation: 1 };
const WORD: u32 = 0x8000_0000 | 1 << 8;

/// From now on this process is another user's.
pub fn become_nobody() -> Result<()> {
    // SAFETY: a plain system call; no other thread runs yet.
    ensure!(unsafe { libc::setresuid(65534, 65534, 65534) } == 0, "setresuid");
    Ok(())
}

/// `spoil SERVER HOW`: takes what the server gives it to ring by, says "spoils", and until it is killed: eat (reads
/// whatever comes, and says "ate"), fill (fills it, so that who rings next waits), end (shuts it down).
pub fn spoil(server: SocketAddr, args: &[String]) -> Result<()> {
    let how = args.first().context("how")?.as_str();
    become_nobody()?;
    let mut link = establish(server)?;
    until("something to ring by", || {
        let message = [7; 100];
        link.ring(&message);
        link.expect(&message)?;
        Ok((given(&link).next().is_some()).then_some(()))
    })?;
    // What we have rung ourselves.
    given(&link).for_each(|fd| set_waiting(fd, false));
    given(&link).for_each(|fd| while eat(fd) {});
    say(&format!("spoils {}", given(&link).count()));
    let mut filled = false;
    let end = Instant::now() + PATIENCE * 3;
    while Instant::now() < end {
        match how {
            "eat" => given(&link).filter(|fd| eat(*fd)).for_each(|_| say("ate")),
            "fill" if filled => std::thread::sleep(Duration::from_millis(1)),
            "fill" => {
                given(&link).for_each(fill);
                filled = true;
            }
            "end" => {
                given(&link).for_each(end_it);
                std::thread::sleep(Duration::from_millis(1));
            }
            other => bail!("unknown way {other}"),
        }
        link.hear();
    }
    Ok(())
}

/// What came from the server but for its page.
fn given(link: &Link) -> impl Iterator<Item = RawFd> {
    // SAFETY: no pointers.
    let is_page = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_GET_SEALS) } >= 0;
    link.bells.iter().map(AsRawFd::as_raw_fd).filter(move |fd| !is_page(fd))
}

fn set_waiting(fd: RawFd, waits: bool) {
    // SAFETY: no pointers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, if waits { 0 } else { libc::O_NONBLOCK }) };
}

fn end_it(fd: RawFd) {
    // SAFETY: no pointers.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

fn eat(fd: RawFd) -> bool {
    // SAFETY: a buffer of ours.
    unsafe { libc::read(fd, [0u8; 64].as_mut_ptr().cast(), 64) > 0 }
}

fn say(what: &str) {
    println!("{what}");
    let _ = std::io::stdout().flush();
}

/// Writes until nothing more goes in, and has the next writer wait.
fn fill(fd: RawFd) {
    // The most that an eventfd takes once it is empty, and as good as any other bytes elsewhere.
    let most = (u64::MAX - 1).to_ne_bytes();
    // SAFETY: a buffer of ours.
    let write = || unsafe { libc::write(fd, most.as_ptr().cast(), 8) };
    set_waiting(fd, false);
    for _ in 0..100 {
        eat(fd);
        if write() < 8 {
            continue; // somebody rang in between
        }
        while write() > 0 {}
        break;
    }
    set_waiting(fd, true);
}

/// `asleep SERVER KIND`: sleeps, and names to the server something to ring that it must not, or that is honest. The
/// server answers, and goes on.
pub fn asleep(server: SocketAddr, args: &[String]) -> Result<()> {
    let kind = args.first().context("kind")?.as_str();
    become_nobody()?;
    let mut link = establish(server)?;
    link.in_memory = true;
    let (bell, mut kept) = bell(kind)?;
    let (page, word) = page()?;
    let mut raw = [0; MAX_MESSAGE];
    let n = Message::Bell(WAITER).emit(&mut raw, true);
    link.tell(&raw[..n], &[bell.as_raw_fd(), page.as_raw_fd()])?;
    drop(bell);
    asks_asleep(&mut link, word).with_context(|| kind.to_string())?;
    let rung = kept.taken()?;
    println!("asleep: {kind}, rung by {rung} bytes");
    match kind {
        "honest" => ensure!(rung > 0, "an honest one was not rung"),
        "full-socket" | "ended-socket" => {}
        _ => ensure!(rung == 0, "{rung} bytes were written into what is none of the server's"),
    }
    Ok(())
}

/// 50 messages, each answer awaited asleep, by what was named to the server.
pub fn asks_asleep(link: &mut Link, word: &AtomicU32) -> Result<()> {
    for i in 0..50u32 {
        word.store(2 * i + 1, SeqCst);
        link.region.d32(1, at::BELL).store(WORD, SeqCst);
        let message = [i as u8; 100];
        link.ring(&message);
        link.expect(&message).with_context(|| format!("answer {i}"))?;
    }
    Ok(())
}

/// The other end of what the server was given.
struct Kept {
    /// What shows what was written, and how many bytes lay there before.
    other: Option<(File, usize)>,
    _held: Vec<OwnedFd>,
}

impl Kept {
    fn taken(&mut self) -> Result<usize> {
        let Some((other, before)) = &mut self.other else { return Ok(0) };
        set_waiting(other.as_raw_fd(), false);
        let mut all = Vec::new();
        let _ = other.read_to_end(&mut all); // to its end, or till there is no more
        Ok(all.len() - *before)
    }
}

/// What the server is to ring, and what is kept of it.
fn bell(kind: &str) -> Result<(OwnedFd, Kept)> {
    let nothing = || Kept { other: None, _held: vec![] };
    let watched = |other: OwnedFd| Kept { other: Some((other.into(), 0)), _held: vec![] };
    Ok(match kind {
        "honest" => {
            let (given, kept) = UnixStream::pair()?;
            (given.into(), watched(kept.into()))
        }
        "eventfd" => {
            // SAFETY: no pointers; the descriptor is fresh.
            let fd = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
            fill(fd.as_raw_fd());
            (fd, nothing())
        }
        "pipe" => {
            let (kept, given) = std::io::pipe()?;
            fill(given.as_raw_fd());
            (given.into(), Kept { other: None, _held: vec![kept.into()] })
        }
        "broken-pipe" => (std::io::pipe()?.1.into(), nothing()),
        "full-socket" => {
            let (given, kept) = UnixStream::pair()?;
            fill(given.as_raw_fd());
            (given.into(), Kept { other: None, _held: vec![kept.into()] })
        }
        "ended-socket" => (UnixStream::pair()?.0.into(), nothing()),
        "datagrams" => {
            let (given, kept) = UnixDatagram::pair()?;
            (given.into(), watched(kept.into()))
        }
        "named" => {
            // As a service of somebody else's would be, to which the server would seem to speak.
            let name = UnixAddr::from_abstract_name(format!("hostile-{}", std::process::id()))?;
            let listener = UnixListener::bind_addr(&name)?;
            let given = UnixStream::connect_addr(&name)?;
            (given.into(), watched(listener.accept()?.0.into()))
        }
        "tcp" => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let given = connect(listener.local_addr()?)?;
            let kept = listener.accept()?.0;
            fill(given.as_raw_fd());
            (given.into(), Kept { other: None, _held: vec![kept.into()] })
        }
        "file" => {
            let path = std::env::temp_dir().join(format!("hostile-bell-{}", std::process::id()));
            let given = File::options().read(true).write(true).create_new(true).open(&path)?;
            let kept = File::open(&path)?;
            std::fs::remove_file(&path)?;
            (given.into(), watched(kept.into()))
        }
        other => bail!("unknown kind {other}"),
    })
}

/// A page of sleep words, and the first of them.
pub fn page() -> Result<(OwnedFd, &'static AtomicU32)> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: plain system calls on a descriptor of ours; the mapping stays for ever.
    unsafe {
        let fd = libc::memfd_create(c"smcr-wake".as_ptr(), libc::MFD_ALLOW_SEALING);
        ensure!(fd >= 0, "memfd");
        let fd = OwnedFd::from_raw_fd(fd);
        ensure!(libc::ftruncate(fd.as_raw_fd(), PAGE as i64) == 0, "ftruncate");
        let p = libc::mmap(std::ptr::null_mut(), PAGE, 3, libc::MAP_SHARED, fd.as_raw_fd(), 0);
        ensure!(p != libc::MAP_FAILED, "mmap");
        ensure!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0, "seals");
        Ok((fd, &*p.cast()))
    }
}
