//! A process with a family page that a test writes: `sleep` with the page as its input and a TCP
//! connection as its output, so that what smcrctl looks at in /proc is real.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use nix::sys::memfd::{MFdFlags, memfd_create};
use smcr_proto::page::{self, Counter, header, process, socket};

const PROC_CAP: usize = 4;
const SOCK_CAP: usize = 16;
/// Records are larger than the public part, as the library's are.
const SOCK_SIZE: usize = socket::PUBLIC_LEN + 128;
const SOCK_OFF: usize = header::LEN + PROC_CAP * process::LEN;

/// The descriptor of `sleep` that is a connection.
pub const FD: i32 = 1;

pub struct Fake {
    child: Child,
    page: File,
    /// The ends of the connection: of the fake process, and of the test.
    pub local: SocketAddr,
    pub peer: SocketAddr,
    _peer: TcpStream,
}

impl Fake {
    /// A process with one record for itself, and none yet for its connection.
    pub fn start() -> Fake {
        let page = File::from(memfd_create(page::MEMFD_NAME, MFdFlags::MFD_CLOEXEC).unwrap());
        page.set_len((SOCK_OFF + SOCK_CAP * SOCK_SIZE) as u64)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let (local, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let child = Command::new("sleep")
            .arg("600")
            .stdin(OwnedFd::from(page.try_clone().unwrap()))
            .stdout(OwnedFd::from(stream))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let fake = Fake {
            child,
            page,
            local,
            peer,
            _peer: accepted,
        };
        fake.write_header();
        fake.write_process(0, fake.pid());
        fake
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.page.write_all_at(bytes, at as u64).unwrap();
    }

    fn write_header(&self) {
        self.put(header::MAGIC, &page::MAGIC);
        for (at, n) in [
            (header::VERSION, page::VERSION as usize),
            (header::PROC_OFF, header::LEN),
            (header::PROC_SIZE, process::LEN),
            (header::PROC_CAP, PROC_CAP),
            (header::SOCK_OFF, SOCK_OFF),
            (header::SOCK_SIZE, SOCK_SIZE),
            (header::SOCK_CAP, SOCK_CAP),
        ] {
            self.put(at, &(n as u32).to_le_bytes());
        }
    }

    /// A record of a process; one that is not alive if the number is not ours.
    pub fn write_process(&self, index: usize, pid: u32) {
        let at = header::LEN + index * process::LEN;
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let start: u64 = stat
            .rsplit(") ")
            .next()
            .unwrap()
            .split(' ')
            .nth(19)
            .unwrap()
            .parse()
            .unwrap();
        self.put(at + process::PID, &pid.to_le_bytes());
        self.put(at + process::ENABLED, &1u32.to_le_bytes());
        self.put(at + process::START, &start.to_le_bytes());
        self.put(at + process::NAME, b"sleep");
        self.put(at + process::LIB_VERSION, &0x0001_0203u32.to_le_bytes());
    }

    pub fn count(&self, counter: Counter, value: u64) {
        let at = header::LEN + process::COUNTERS + 8 * counter as usize;
        self.put(at, &value.to_le_bytes());
    }

    /// A record of the connection, with its addresses.
    pub fn connection(&self, state: page::State, reason: u32, media: [u8; 2]) {
        self.record(0, state, reason, media, Some((self.local, self.peer)));
    }

    /// Any record.
    pub fn record(
        &self,
        index: usize,
        state: page::State,
        reason: u32,
        media: [u8; 2],
        ends: Option<(SocketAddr, SocketAddr)>,
    ) {
        let at = SOCK_OFF + index * SOCK_SIZE;
        let word = |field: usize, n: u32| self.put(at + field, &n.to_le_bytes());
        word(socket::STATE, state as u32);
        word(socket::REASON, reason);
        word(socket::FD, FD as u32);
        word(socket::ROLE, 1);
        word(socket::TX_RING, 65536);
        word(socket::RX_RING, 65536);
        self.put(at + socket::TX_MEDIUM, &media);
        for (field, n) in [
            (socket::MEM_TX, 1000u64),
            (socket::MEM_TX_SEEN, 900),
            (socket::MEM_RX, 50),
            (socket::MEM_RX_SEEN, 80),
            (socket::TCP_TX, 7),
        ] {
            self.put(at + field, &n.to_le_bytes());
        }
        if let Some((local, peer)) = ends {
            self.put(at + socket::FAMILY, &2u16.to_le_bytes());
            for (addr, ip, port) in [
                (local, socket::LOCAL_ADDR, socket::LOCAL_PORT),
                (peer, socket::PEER_ADDR, socket::PEER_PORT),
            ] {
                let std::net::IpAddr::V4(v4) = addr.ip() else {
                    panic!("IPv4")
                };
                self.put(at + ip, &v4.octets());
                self.put(at + port, &addr.port().to_le_bytes());
            }
        }
        self.put(header::SOCK_HIGH, &(SOCK_CAP as u32).to_le_bytes());
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
