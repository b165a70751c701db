//! A thousand processes with a page each, ten thousand connections: listed in a second, and right.
//!
//! The processes are real, as are their pages, descriptors and the kernel's TCP connections: `sleep`,
//! each with ten connections to one listener of the test. Times are printed, and not asserted.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use smcr_proto::page::{State, header};

use super::bed::Bed;
use super::page::{Page, Sizes, start_of};

const PROCESSES: usize = 1000;
const CONNECTIONS: usize = 10;
/// As the library makes them.
const SIZES: Sizes = Sizes { processes: 1024, sockets: 65_536, socket: 1024 };
/// Lowest descriptor of a connection in `sleep`.
const FIRST: i32 = 10;

struct Crowd {
    children: Vec<Child>,
    _ends: Vec<TcpStream>,
    _listener: TcpListener,
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

fn one(port: u16, ends: &mut Vec<TcpStream>, listener: &TcpListener) -> Child {
    let page = Page::new(SIZES);
    let mut streams = Vec::new();
    for i in 0..CONNECTIONS {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        ends.push(listener.accept().unwrap().0);
        let names = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let fd = FIRST + i as i32;
        if i % 2 == 0 {
            page.socket(i, fd, State::Accelerated, 0, [1, 1], Some(names));
        } else {
            page.socket(i, fd, State::Tcp, 1, [0, 0], Some(names));
        }
        streams.push(above(&stream));
    }
    page.word(header::SOCK_HIGH, CONNECTIONS as u32);
    page.word(header::PROC_HIGH, 1);
    let mut command = Command::new("sleep");
    command.arg("600").stdin(OwnedFd::from(page.file.try_clone().unwrap())).stdout(Stdio::null()).stderr(Stdio::null());
    let fds: Vec<i32> = streams.iter().map(|s| s.as_raw_fd()).collect();
    // SAFETY: between fork and exec: dup2 only, on numbers that were read before.
    unsafe {
        command.pre_exec(move || {
            for (i, fd) in fds.iter().enumerate() {
                // All are above the numbers that they get: none is overwritten before it is copied.
                if nix::libc::dup2(*fd, FIRST + i as i32) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    page.process(0, child.id(), start_of(child.id()));
    child
}

/// A copy with a number above those that connections have in `sleep`, whatever other tests open and close meanwhile.
fn above(stream: &TcpStream) -> OwnedFd {
    use nix::fcntl::{FcntlArg, fcntl};
    let fd = fcntl(stream, FcntlArg::F_DUPFD_CLOEXEC(FIRST + CONNECTIONS as i32)).unwrap();
    // SAFETY: new, and nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn crowd() -> Crowd {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut ends = Vec::new();
    let children = (0..PROCESSES).map(|_| one(port, &mut ends, &listener)).collect();
    Crowd { children, _ends: ends, _listener: listener }
}

/// Needs some 11,000 descriptors; says so and ends where they cannot be had.
#[test]
fn ten_thousand_connections() {
    use nix::sys::resource::{Resource, getrlimit};
    let most = getrlimit(Resource::RLIMIT_NOFILE).unwrap().1;
    assert!(most > 12_000, "this test needs 12,000 descriptors; ulimit -n allows {most}");
    let (bed, crowd) = (Bed::new(), crowd());
    let ours = |pid: &Value| {
        let pid = pid.as_u64().unwrap_or_default();
        crowd.children.iter().any(|c| u64::from(c.id()) == pid)
    };
    let json = |args: &[&str]| -> Value {
        let start = Instant::now();
        let text = bed.ok(args);
        println!("{args:?}: {} ms", start.elapsed().as_millis());
        serde_json::from_str(&text).unwrap()
    };
    let socks = json(&["sock", "--json"]);
    let socks: Vec<_> = socks.as_array().unwrap().iter().collect();
    let found = socks.iter().filter(|s| ours(&s["pid"])).count();
    assert_eq!(found, PROCESSES * CONNECTIONS);
    let fast = socks.iter().filter(|s| s["mode"] == "shm" && ours(&s["pid"]));
    assert_eq!(fast.count(), PROCESSES * CONNECTIONS / 2);
    let stats = json(&["stats", "-a", "--json"]);
    let processes = stats["processes"].as_array().unwrap();
    assert_eq!(processes.iter().filter(|p| ours(&p["pid"])).count(), PROCESSES);
    let start = Instant::now();
    bed.ok(&["top", "-c", "1"]);
    println!("top: {} ms", start.elapsed().as_millis());
}
