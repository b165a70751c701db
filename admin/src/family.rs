//! Reads a family page: the memfd by which processes show their sockets and counters.
//!
//! The page belongs to processes that are not trusted: sizes and offsets are checked, and the
//! bytes are copied with pread, so that a page made shorter meanwhile does no harm. Used by `scan`.

mod array;

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};

use smcr_proto::page::link::{self, Record};
use smcr_proto::page::{self, COUNTERS, SIZES, State, header, process, socket};
use smcr_proto::reason::Reason;

use self::array::{Array, Bytes, read_some};

/// What is in a page.
#[derive(Clone, Debug)]
pub struct Family {
    /// The page's version, if it is newer than ours: there may be more than we show.
    pub newer: Option<u32>,
    pub processes: Vec<Process>,
    pub sockets: Vec<Socket>,
    /// Link groups with the number of the process record that they belong to.
    pub links: Vec<(u32, Record)>,
}

/// A process record in use.
#[derive(Clone, Debug)]
pub struct Process {
    pub index: u32,
    /// As the process sees itself; another number than ours if it is in a container.
    pub pid: u32,
    pub start: u64,
    pub enabled: bool,
    pub name: String,
    pub lib_version: u32,
    /// Descriptor and inode of the pipe that wakes it; inode 0 without one.
    pub wake: (i32, u64),
    /// In the order of [`COUNTERS`]; those that the library does not have are 0.
    pub counters: Vec<u64>,
    /// How many connections ended on TCP, by the reason's number.
    pub fallbacks: Vec<(u32, u64)>,
}

/// A socket record in use.
#[derive(Clone, Debug, Default)]
pub struct Socket {
    pub state: u32,
    pub reason: u32,
    pub process: u32,
    pub fd: i32,
    pub cookie: u64,
    pub role: u32,
    pub tx_medium: u8,
    pub rx_medium: u8,
    pub tcp_tx: u64,
    pub tcp_rx: u64,
    pub mem_tx: u64,
    pub mem_rx: u64,
    pub mem_tx_seen: u64,
    pub mem_rx_seen: u64,
    pub tx_ring: u32,
    pub rx_ring: u32,
    pub tx_switches: u32,
    pub rx_switches: u32,
    pub peer_pid: u32,
    pub peer_uid: u32,
    pub bells_tx: u32,
    pub bells_rx: u32,
    /// Sends, then receives, in memory, by size.
    pub sizes: [[u64; SIZES.len()]; 2],
    /// Local and peer's address, once the library knows them.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
}

/// Why a page cannot be shown.
#[derive(Debug)]
pub enum FamilyError {
    /// It could not be read.
    Io(io::Error),
    /// It is no family page.
    NotAPage,
    /// Offsets or sizes in its header cannot be.
    Layout(&'static str),
}

impl std::fmt::Display for FamilyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FamilyError::Io(error) => write!(f, "cannot read the family page: {error}"),
            FamilyError::NotAPage => f.write_str("not a family page"),
            FamilyError::Layout(what) => write!(f, "the family page has an impossible {what}"),
        }
    }
}

impl std::error::Error for FamilyError {}

impl From<io::Error> for FamilyError {
    fn from(error: io::Error) -> Self {
        FamilyError::Io(error)
    }
}

impl Family {
    pub fn read(file: &File) -> Result<Family, FamilyError> {
        let mut head = [0; header::LEN];
        let got = read_some(file, &mut head, 0)?;
        let head = Bytes(head.get(..got).unwrap_or(&[]));
        if head.0.get(..8) != Some(&page::MAGIC[..]) {
            return Err(FamilyError::NotAPage);
        }
        let version = head.u32(header::VERSION);
        let len = file.metadata()?.len();
        let mut family = Family {
            newer: (version > page::VERSION).then_some(version),
            processes: Vec::new(),
            sockets: Vec::new(),
            links: Vec::new(),
        };
        let procs = Array {
            first: head.u32(header::PROC_OFF).into(),
            size: head.u32(header::PROC_SIZE).into(),
            count: head.u32(header::PROC_CAP).into(),
            least: process::COUNTERS,
            want: process::LEN,
            name: "process array",
        };
        procs.each(file, len, |index, bytes| {
            family.processes.extend(Process::parse(index, bytes));
        })?;
        let high = head.u32(header::SOCK_HIGH);
        let socks = Array {
            first: head.u32(header::SOCK_OFF).into(),
            size: head.u32(header::SOCK_SIZE).into(),
            count: high.min(head.u32(header::SOCK_CAP)).into(),
            least: socket::PUBLIC_LEN,
            want: socket::LEN,
            name: "socket array",
        };
        socks.each(file, len, |_, bytes| {
            family.sockets.extend(Socket::parse(bytes));
        })?;
        let links = Array {
            first: head.u32(header::LINK_OFF).into(),
            size: head.u32(header::LINK_SIZE).into(),
            // Those of processes that there are: the rest was never written.
            count: match family.processes.iter().map(|p| p.index as usize + 1).max() {
                Some(used) => (used * link::EACH).min(head.u32(header::LINK_CAP) as usize) as u64,
                None => 0,
            },
            least: link::LEN,
            want: link::LEN,
            name: "link group array",
        };
        links.each(file, len, |index, bytes| {
            let process = index / link::EACH as u32;
            family.links.extend(Record::parse(bytes.0).map(|r| (process, r)));
        })?;
        Ok(family)
    }
}

impl Process {
    fn parse(index: u32, b: Bytes<'_>) -> Option<Process> {
        let pid = b.u32(process::PID);
        if pid == 0 {
            return None;
        }
        let name: [u8; 16] = b.array(process::NAME);
        let end = name.iter().position(|c| *c == 0).unwrap_or(name.len());
        let counters = 0..COUNTERS.len();
        Some(Process {
            index,
            pid,
            start: b.u64(process::START),
            enabled: b.u32(process::ENABLED) != 0,
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
            lib_version: b.u32(process::LIB_VERSION),
            wake: (b.u32(process::WAKE_FD) as i32, b.u64(process::WAKE_INODE)),
            counters: counters.map(|i| b.u64(process::COUNTERS + 8 * i)).collect(),
            fallbacks: (0..process::FALLBACK_CAP)
                .map(|i| b.u64(process::FALLBACKS + 8 * i))
                .take_while(|word| *word != 0)
                .map(|word| ((word >> 32) as u32, word & 0xffff_ffff))
                .collect(),
        })
    }

    /// The library's version in the usual form.
    pub fn version(&self) -> String {
        let v = self.lib_version;
        format!("{}.{}.{}", v >> 16, (v >> 8) & 0xff, v & 0xff)
    }
}

impl Socket {
    fn parse(b: Bytes<'_>) -> Option<Socket> {
        let state = b.u32(socket::STATE);
        if state == State::Free as u32 {
            return None;
        }
        Some(Socket {
            state,
            reason: b.u32(socket::REASON),
            process: b.u32(socket::PROCESS),
            fd: b.u32(socket::FD) as i32,
            cookie: b.u64(socket::COOKIE),
            role: b.u32(socket::ROLE),
            tx_medium: b.u8(socket::TX_MEDIUM),
            rx_medium: b.u8(socket::RX_MEDIUM),
            tcp_tx: b.u64(socket::TCP_TX),
            tcp_rx: b.u64(socket::TCP_RX),
            mem_tx: b.u64(socket::MEM_TX),
            mem_rx: b.u64(socket::MEM_RX),
            mem_tx_seen: b.u64(socket::MEM_TX_SEEN),
            mem_rx_seen: b.u64(socket::MEM_RX_SEEN),
            tx_ring: b.u32(socket::TX_RING),
            rx_ring: b.u32(socket::RX_RING),
            tx_switches: b.u32(socket::TX_SWITCHES),
            rx_switches: b.u32(socket::RX_SWITCHES),
            peer_pid: b.u32(socket::PEER_PID),
            peer_uid: b.u32(socket::PEER_UID),
            bells_tx: b.u32(socket::BELLS_TX),
            bells_rx: b.u32(socket::BELLS_RX),
            sizes: [socket::TX_SIZES, socket::RX_SIZES]
                .map(|at| std::array::from_fn(|i| b.u64(at + 8 * i))),
            addresses: addresses(b),
        })
    }

    pub fn state_word(&self) -> String {
        let known = State::from_code(self.state);
        known.map_or_else(|| self.state.to_string(), |s| s.label().to_string())
    }

    pub fn is(&self, state: State) -> bool {
        self.state == state as u32
    }

    /// The medium of both directions, or of sending/receiving where they differ.
    pub fn mode_word(&self) -> String {
        let word = |medium| match medium {
            0 => "tcp",
            1 => "shm",
            2 => "rdma",
            _ => "?",
        };
        if self.tx_medium == self.rx_medium {
            return word(self.tx_medium).to_string();
        }
        format!("{}/{}", word(self.tx_medium), word(self.rx_medium))
    }

    /// The reason's name, or its number if we do not know it.
    pub fn reason_word(&self) -> String {
        reason_word(self.reason)
    }

    /// Bytes sent that the peer has not yet taken, as far as the peer's cursor is known.
    pub fn in_flight(&self) -> u64 {
        self.mem_tx
            .saturating_sub(self.mem_tx_seen)
            .min(self.tx_ring.into())
    }

    /// Bytes that the program has not yet read.
    pub fn unread(&self) -> u64 {
        self.mem_rx_seen
            .saturating_sub(self.mem_rx)
            .min(self.rx_ring.into())
    }
}

/// A reason's name, or its number if we do not know it.
pub fn reason_word(code: u32) -> String {
    let known = Reason::from_code(code);
    known.map_or_else(|| format!("{code:#x}"), |reason| reason.label().to_string())
}

fn addresses(b: Bytes<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let address = |at: usize| match b.u16(socket::FAMILY) {
        2 => Some(IpAddr::from(b.array::<4>(at))),
        10 => Some(IpAddr::from(b.array::<16>(at))),
        _ => None,
    };
    let local = SocketAddr::new(address(socket::LOCAL_ADDR)?, b.u16(socket::LOCAL_PORT));
    let peer = SocketAddr::new(address(socket::PEER_ADDR)?, b.u16(socket::PEER_PORT));
    Some((local, peer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const SIZE: usize = socket::PUBLIC_LEN + 64;

    fn page(patch: impl FnOnce(&mut Vec<u8>)) -> Result<Family, FamilyError> {
        let mut bytes = vec![0; header::LEN + process::LEN + 2 * SIZE];
        let put = |bytes: &mut Vec<u8>, at: usize, n: u32| {
            bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
        };
        bytes[..8].copy_from_slice(&page::MAGIC);
        let sockets = (header::LEN + process::LEN) as u32;
        for (at, n) in [
            (header::VERSION, 1),
            (header::PROC_OFF, header::LEN as u32),
            (header::PROC_SIZE, process::LEN as u32),
            (header::PROC_CAP, 1),
            (header::SOCK_OFF, sockets),
            (header::SOCK_SIZE, SIZE as u32),
            (header::SOCK_CAP, 2),
            (header::SOCK_HIGH, 2),
            (header::LEN + process::PID, 42),
            (sockets as usize + SIZE + socket::STATE, 3),
        ] {
            put(&mut bytes, at, n);
        }
        patch(&mut bytes);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        Family::read(&file)
    }

    #[test]
    fn records_in_use_are_read() {
        let family = page(|_| {}).unwrap();
        assert_eq!(family.processes.len(), 1);
        assert_eq!(family.processes[0].pid, 42);
        assert_eq!(family.sockets.len(), 1);
        assert_eq!(family.sockets[0].state_word(), "ACCELERATED");
        assert_eq!(family.sockets[0].addresses, None);
    }

    #[test]
    fn a_newer_page_is_shown_and_said() {
        assert_eq!(page(|b| b[header::VERSION] = 9).unwrap().newer, Some(9));
    }

    #[test]
    fn hostile_headers_are_refused() {
        let all_ones = |at: usize| move |b: &mut Vec<u8>| b[at..at + 4].fill(0xff);
        for at in [
            header::PROC_OFF,
            header::PROC_SIZE,
            header::PROC_CAP,
            header::SOCK_OFF,
            header::SOCK_SIZE,
        ] {
            assert!(
                matches!(page(all_ones(at)), Err(FamilyError::Layout(_))),
                "{at}"
            );
        }
        // More used than there are: the smaller number counts.
        assert!(page(all_ones(header::SOCK_HIGH)).is_ok());
        assert!(matches!(page(|b| b[0] = 0), Err(FamilyError::NotAPage)));
        assert!(matches!(
            page(|b| b.truncate(100)),
            Err(FamilyError::Layout(_))
        ));
        assert!(matches!(page(|b| b.clear()), Err(FamilyError::NotAPage)));
        assert!(page(|b| b[header::SOCK_SIZE..][..4].fill(0)).is_err());
    }

    #[test]
    fn cursors_that_cannot_be_show_no_more_than_the_ring() {
        let socket = Socket {
            mem_tx: u64::MAX,
            tx_ring: 65536,
            mem_rx: 5,
            ..Socket::default()
        };
        assert_eq!((socket.in_flight(), socket.unread()), (65536, 0));
    }
}
