//! Owns: descriptors whose close waits, which a peer of another user passes to the server: whoever closes one of them is
//! held for as long as the peer likes.

use crate::attacks::establish;
use crate::link::{Link, PATIENCE};
use crate::region::{Kind, Region};
use crate::wakes::{WAITER, asks_asleep, become_nobody, page};
use anyhow::{Context, Result, bail, ensure};
use smcr_proto::rendezvous::{MAX_MESSAGE, Message, VERSION_HIGH, VERSION_LOW};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// `hold SERVER WHAT WHERE`: passes it, has the server work on, says "held", and holds it until it is killed. WHAT: linger
/// (a TCP socket), fuse (a file of a mount of its own). WHERE: offer, bell, many (more than are taken), left (it lies in a
/// channel that has ended), nested (in the queue of what is to be rung).
pub fn hold(server: SocketAddr, args: &[String]) -> Result<()> {
    let [what, place] = args else { bail!("what, and where") };
    match what.as_str() {
        "linger" => {
            let (given, _kept) = lingering()?;
            pass(server, given, place)
        }
        "fuse" => mounted(|file| pass(server, file, place)),
        other => bail!("unknown kind {other}"),
    }
}

fn pass(server: SocketAddr, given: OwnedFd, place: &str) -> Result<()> {
    become_nobody()?;
    let mut raw = [0; MAX_MESSAGE];
    let fd = given.as_raw_fd();
    if place == "bell" || place == "nested" {
        let mut link = establish(server)?;
        link.in_memory = true;
        let (page, word) = page()?;
        let n = Message::Bell(WAITER).emit(&mut raw, true);
        let (end, other) = UnixStream::pair()?;
        if place == "nested" {
            crate::link::send_with(other.as_raw_fd(), &[1], &[fd])?;
            link.tell(&raw[..n], &[end.as_raw_fd(), page.as_raw_fd()])?;
        } else {
            link.tell(&raw[..n], &[fd, page.as_raw_fd()])?;
        }
        drop((given, end));
        asks_asleep(&mut link, word)?;
        drop((link, other)); // it lets go of what it was given
        return held(Link::new(server, Region::new(Kind::Right)?)?);
    }
    let mut link = Link::new(server, Region::new(Kind::Right)?)?;
    link.open_channel()?;
    let n = Message::Offer(link.offer((VERSION_LOW, VERSION_HIGH), link.facts.cookie)).emit(&mut raw, false);
    let memory = link.region.fd.as_raw_fd();
    match place {
        "offer" => link.tell(&raw[..n], &[fd])?,
        "many" => link.tell(&raw[..n], &[memory, memory, memory, memory, fd])?,
        "left" => {
            link.tell(b"nonsense", &[])?;
            link.tell(&raw[..n], &[fd])?;
        }
        other => bail!("unknown place {other}"),
    }
    drop(given);
    held(link)
}

/// The server goes on, whatever it does with what it was given.
fn held(mut link: Link) -> Result<()> {
    for _ in 0..100 {
        link.echo(1000)?;
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("held");
    std::io::stdout().flush()?;
    std::thread::sleep(PATIENCE * 3);
    Ok(())
}

/// A TCP socket with data that nobody takes, which waits for that when it is closed.
fn lingering() -> Result<(OwnedFd, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut given = TcpStream::connect(listener.local_addr()?)?;
    let kept = listener.accept()?.0;
    given.set_nonblocking(true)?;
    let full = loop {
        if let Err(e) = given.write_all(&[7; 65536]) {
            break e;
        }
    };
    ensure!(full.kind() == ErrorKind::WouldBlock, "{full}");
    given.set_nonblocking(false)?;
    let linger = libc::linger { l_onoff: 1, l_linger: 3600 };
    // SAFETY: a struct of this layout.
    let r = unsafe {
        let len = size_of_val(&linger) as u32;
        libc::setsockopt(given.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len)
    };
    ensure!(r == 0, "SO_LINGER");
    Ok((given.into(), kept))
}

/// Runs `attack` in a child with a file of a mount of its own; this process is the file system. It answers the child alone,
/// and says who else has asked.
fn mounted(attack: impl FnOnce(OwnedFd) -> Result<()>) -> Result<()> {
    // SAFETY: plain system calls; the process has one thread.
    unsafe { ensure!(libc::unshare(libc::CLONE_NEWNS) == 0, "unshare") };
    mount(c"none", c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)?;
    let device = File::options().read(true).write(true).open("/dev/fuse").context("/dev/fuse")?;
    let path = std::env::temp_dir().join(format!("hostile-mount-{}", std::process::id()));
    File::create(&path)?;
    let place = std::ffi::CString::new(path.to_str().context("path")?)?;
    // Its root is a plain file.
    let options = format!("fd={},rootmode=100000,user_id=0,group_id=0\0", device.as_raw_fd());
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes())?;
    mount(c"hostile", &place, Some(c"fuse"), 0, Some(options))?;
    // SAFETY: the process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            drop(device);
            // SAFETY: no pointers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let done = File::options().read(true).write(true).open(&path).context("the file").and_then(|f| attack(f.into()));
            if let Err(e) = &done {
                eprintln!("{e:#}");
            }
            std::process::exit(i32::from(done.is_err()));
        }
        child => serve(device, child, &path),
    }
}

fn mount(
    from: &std::ffi::CStr,
    to: &std::ffi::CStr,
    kind: Option<&std::ffi::CStr>,
    flags: libc::c_ulong,
    options: Option<&std::ffi::CStr>,
) -> Result<()> {
    let text = |t: Option<&std::ffi::CStr>| t.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
    // SAFETY: all texts end with NUL.
    let r = unsafe { libc::mount(from.as_ptr(), to.as_ptr(), text(kind), flags, text(options).cast()) };
    ensure!(r == 0, "mount: {}", std::io::Error::last_os_error());
    Ok(())
}

/// The file system: one file, of which nobody but the child gets an answer to anything that waits.
fn serve(mut device: File, child: i32, path: &std::path::Path) -> Result<()> {
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const RELEASE: u32 = 18;
    const FLUSH: u32 = 25;
    const INIT: u32 = 26;
    const FORGET: u32 = 2;
    const INTERRUPT: u32 = 36;
    let mut buf = vec![0u8; 1 << 17];
    loop {
        let mut ended = 0;
        // SAFETY: a status of ours.
        if unsafe { libc::waitpid(child, &mut ended, libc::WNOHANG) } == child {
            let _ = std::fs::remove_file(path);
            ensure!(libc::WIFEXITED(ended) && libc::WEXITSTATUS(ended) == 0, "the child has ended with {ended}");
            return Ok(());
        }
        let mut p = libc::pollfd { fd: device.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        if unsafe { libc::poll(&mut p, 1, 50) } < 1 {
            continue;
        }
        let n = match device.read(&mut buf) {
            Ok(n) => n,
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINTR | libc::EAGAIN)) => continue,
            Err(e) => return Err(e.into()),
        };
        ensure!(n >= 40, "a short request");
        let u32_at = |o: usize| u32::from_ne_bytes([buf[o], buf[o + 1], buf[o + 2], buf[o + 3]]);
        let (opcode, unique, pid) = (u32_at(4), buf[8..16].to_vec(), u32_at(32));
        let mut out = Vec::new();
        let mut error = 0i32;
        match opcode {
            FORGET | INTERRUPT => continue,
            INIT => {
                for v in [7u32, 31, 0, 0, 0, 65536, 1] {
                    out.extend(v.to_ne_bytes());
                }
                out.resize(64, 0);
            }
            _ if pid != child as u32 && opcode != RELEASE => {
                println!("asked by another: {opcode}");
                std::io::stdout().flush()?;
                continue;
            }
            GETATTR => {
                out.resize(16 + 60, 0);
                for v in [0o100_666u32, 1, 0, 0, 0, 4096, 0] {
                    out.extend(v.to_ne_bytes());
                }
            }
            OPEN => out.resize(16, 0),
            RELEASE | FLUSH => {}
            _ => error = -libc::ENOSYS,
        }
        let mut answer = Vec::new();
        answer.extend((16 + out.len() as u32).to_ne_bytes());
        answer.extend(error.to_ne_bytes());
        answer.extend(unique);
        answer.extend(out);
        let _ = device.write(&answer);
    }
}
