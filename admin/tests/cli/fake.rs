//! A process with a family page that a test writes: `sleep` with the page as its input and a TCP
//! connection as its output, so that what smcrctl looks at in /proc is real.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use smcr_proto::page::{Counter, State, process, socket};

use crate::page::{Page, Sizes, start_of};

const SIZES: Sizes = Sizes { processes: 4, sockets: 16, socket: socket::LEN };
/// As the first library made them: nothing behind the public part.
const FIRST_SIZES: Sizes = Sizes { socket: socket::PUBLIC_LEN, ..SIZES };

/// The descriptor of `sleep` that is a connection.
pub const FD: i32 = 1;

pub struct Fake {
    child: Child,
    pub page: Page,
    /// The ends of the connection: of the fake process, and of the test.
    pub local: SocketAddr,
    pub peer: SocketAddr,
    _peer: TcpStream,
}

impl Fake {
    /// A process with one record for itself, and none yet for its connection.
    pub fn start() -> Fake {
        Fake::with(Page::new(SIZES), Stdio::null())
    }

    /// The same with something as its standard error.
    pub fn with_error(stderr: impl Into<Stdio>) -> Fake {
        Fake::with(Page::new(SIZES), stderr.into())
    }

    /// The same with a library of before.
    pub fn of_the_first_library() -> Fake {
        Fake::with(Page::new(FIRST_SIZES), Stdio::null())
    }

    fn with(page: Page, stderr: Stdio) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let (local, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let child = Command::new("sleep")
            .arg("600")
            .stdin(OwnedFd::from(page.file.try_clone().unwrap()))
            .stdout(OwnedFd::from(stream))
            .stderr(stderr)
            .spawn()
            .unwrap();
        let fake = Fake { child, page, local, peer, _peer: accepted };
        fake.write_process(0, fake.pid());
        fake
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.page.put(at, bytes);
    }

    /// A record of a process; one that is not alive if the number is not ours.
    pub fn write_process(&self, index: usize, pid: u32) {
        self.page.process(index, pid, start_of(self.pid()));
    }

    pub fn count(&self, counter: Counter, value: u64) {
        self.count_of(0, counter, value);
    }

    /// A counter of another process record.
    pub fn count_of(&self, index: usize, counter: Counter, value: u64) {
        let at = self.page.of_process(index, process::COUNTERS + 8 * counter as usize);
        self.put(at, &value.to_le_bytes());
    }

    /// A record of the connection, with its addresses.
    pub fn connection(&self, state: State, reason: u32, media: [u8; 2]) {
        self.record(0, state, reason, media, Some((self.local, self.peer)));
    }

    /// Any record.
    pub fn record(&self, index: usize, state: State, reason: u32, media: [u8; 2], ends: Option<(SocketAddr, SocketAddr)>) {
        let at = self.page.socket(index, FD, state, reason, media, ends);
        self.page.word(at + socket::TX_RING, 65536);
        self.page.word(at + socket::RX_RING, 65536);
        for (field, n) in [
            (socket::MEM_TX, 1000u64),
            (socket::MEM_TX_SEEN, 900),
            (socket::MEM_RX, 50),
            (socket::MEM_RX_SEEN, 80),
            (socket::TCP_TX, 7),
            (socket::TX_SIZES, 3),
            (socket::RX_SIZES, 2),
        ] {
            if field < self.page.sizes.socket {
                self.put(at + field, &n.to_le_bytes());
            }
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
