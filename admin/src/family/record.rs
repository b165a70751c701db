//! Records of processes and sockets in a family page, as `smcrctl` shows them. Used by the parent, and
//! by whoever shows them.

use std::net::{IpAddr, SocketAddr};

use smcr_proto::page::{COUNTERS, SIZES, State, process, socket};
use smcr_proto::reason::Reason;

use super::array::Bytes;

/// Number of the medium.
const RDMA: u8 = 2;

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
    /// Code of the peer's Decline, 0 without one.
    pub peer_diagnosis: u32,
    pub process: u32,
    pub fd: i32,
    pub cookie: u64,
    pub role: u32,
    pub tx_medium: u8,
    pub rx_medium: u8,
    /// Whether a link carries it, or has.
    pub is_rdma: bool,
    /// Sends and receives on TCP.
    pub tcp_ops: u32,
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

impl Process {
    pub(super) fn parse(index: u32, b: Bytes<'_>) -> Option<Process> {
        let pid = b.u32(process::PID);
        if pid == 0 || b.u32(process::ENABLED) == process::APART {
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

    /// Whether it stands for processes that have ended, and for none that is there.
    pub fn is_of_the_gone(&self) -> bool {
        self.pid == process::ENDED
    }

    /// The library's version in the usual form.
    pub fn version(&self) -> String {
        let v = self.lib_version;
        format!("{}.{}.{}", v >> 16, (v >> 8) & 0xff, v & 0xff)
    }
}

impl Socket {
    pub(super) fn parse(b: Bytes<'_>) -> Option<Socket> {
        let state = b.u32(socket::STATE);
        if state == State::Free as u32 {
            return None;
        }
        let media = [b.u8(socket::TX_MEDIUM), b.u8(socket::RX_MEDIUM)];
        // The state lags behind what the two directions are.
        let is_back = state == State::Accelerated as u32 && media == [0, 0];
        Some(Socket {
            state: if is_back { State::Tcp as u32 } else { state },
            reason: b.u32(socket::REASON),
            peer_diagnosis: b.u32(socket::PEER_DIAGNOSIS),
            process: b.u32(socket::PROCESS),
            fd: b.u32(socket::FD) as i32,
            cookie: b.u64(socket::COOKIE),
            role: b.u32(socket::ROLE),
            tx_medium: media[0],
            rx_medium: media[1],
            is_rdma: media.contains(&RDMA) || b.u8(socket::CARRIED) == RDMA,
            tcp_ops: b.u32(socket::TCP_OPS),
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
            sizes: [socket::TX_SIZES, socket::RX_SIZES].map(|at| std::array::from_fn(|i| b.u64(at + 8 * i))),
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
        self.mem_tx.saturating_sub(self.mem_tx_seen).min(self.tx_ring.into())
    }

    /// Bytes that the program has not yet read.
    pub fn unread(&self) -> u64 {
        self.mem_rx_seen.saturating_sub(self.mem_rx).min(self.rx_ring.into())
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
