//! Reads a family page: the memfd by which processes show their sockets and counters.
//!
//! The page belongs to processes that are not trusted: sizes and offsets are checked, and the
//! bytes are copied with pread, so that a page made shorter meanwhile does no harm. Used by `scan`.

mod array;
mod record;

use std::fs::File;
use std::io;

use smcr_proto::page::link::{self, Record};
use smcr_proto::page::{self, header, process, socket};

use self::array::{Array, Bytes, read_some};
pub use self::record::{Process, Socket, reason_word};

/// Records that one page may have, four times and twice what the library makes room for: who shows pages must not
/// take the memory of root, who looks at them.
const MOST_PROCESSES: u64 = 1 << 12;
const MOST_SOCKETS: u64 = 1 << 17;

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

/// Why a page cannot be shown.
#[derive(Debug)]
pub enum FamilyError {
    /// It could not be read.
    Io(io::Error),
    /// It is no family page.
    NotAPage,
    /// Offsets or sizes in its header cannot be.
    Layout(&'static str),
    /// Its process has more of them than a library makes.
    Many,
}

impl std::fmt::Display for FamilyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FamilyError::Io(error) => write!(f, "cannot read the family page: {error}"),
            FamilyError::NotAPage => f.write_str("not a family page"),
            FamilyError::Layout(what) => write!(f, "the family page has an impossible {what}"),
            FamilyError::Many => f.write_str("it shows more than two family pages"),
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
        let mut family =
            Family { newer: (version > page::VERSION).then_some(version), processes: Vec::new(), sockets: Vec::new(), links: Vec::new() };
        let procs = Array {
            first: head.u32(header::PROC_OFF).into(),
            size: head.u32(header::PROC_SIZE).into(),
            count: match head.u32(header::PROC_HIGH) {
                0 => head.u32(header::PROC_CAP).into(),
                high => high.min(head.u32(header::PROC_CAP)).into(),
            },
            most: MOST_PROCESSES,
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
            most: MOST_SOCKETS,
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
            most: MOST_PROCESSES * link::EACH as u64,
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
            (sockets as usize + SIZE + socket::STATE, 4),
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
        assert_eq!(family.sockets[0].state_word(), "PINNED");
        assert_eq!(family.sockets[0].addresses, None);
    }

    #[test]
    fn a_process_with_a_page_of_its_own_is_not_shown_from_this_one() {
        let apart = |b: &mut Vec<u8>| b[header::LEN + process::ENABLED] = process::APART as u8;
        assert!(page(apart).unwrap().processes.is_empty());
    }

    #[test]
    fn a_newer_page_is_shown_and_said() {
        assert_eq!(page(|b| b[header::VERSION] = 9).unwrap().newer, Some(9));
    }

    #[test]
    fn hostile_headers_are_refused() {
        let all_ones = |at: usize| move |b: &mut Vec<u8>| b[at..at + 4].fill(0xff);
        for at in [header::PROC_OFF, header::PROC_SIZE, header::PROC_CAP, header::SOCK_OFF, header::SOCK_SIZE] {
            assert!(matches!(page(all_ones(at)), Err(FamilyError::Layout(_))), "{at}");
        }
        // More used than there are: the smaller number counts.
        assert!(page(all_ones(header::SOCK_HIGH)).is_ok());
        assert!(matches!(page(|b| b[0] = 0), Err(FamilyError::NotAPage)));
        assert!(matches!(page(|b| b.truncate(100)), Err(FamilyError::Layout(_))));
        assert!(matches!(page(|b| b.clear()), Err(FamilyError::NotAPage)));
        assert!(page(|b| b[header::SOCK_SIZE..][..4].fill(0)).is_err());
    }

    #[test]
    fn more_records_than_a_library_makes_are_refused() {
        let with = |at: usize, high: usize, n: u32, size: usize| {
            page(|b| {
                b[at..at + 4].copy_from_slice(&n.to_le_bytes());
                b[high..high + 4].copy_from_slice(&n.to_le_bytes());
                b.resize(b.len() + n as usize * size, 0);
            })
        };
        for (at, high, most, size) in
            [(header::PROC_CAP, header::PROC_HIGH, MOST_PROCESSES, process::LEN), (header::SOCK_CAP, header::SOCK_HIGH, MOST_SOCKETS, SIZE)]
        {
            assert!(with(at, high, most as u32, size).is_ok());
            assert!(matches!(with(at, high, most as u32 + 1, size), Err(FamilyError::Layout(_))));
        }
    }

    #[test]
    fn cursors_that_cannot_be_show_no_more_than_the_ring() {
        let socket = Socket { mem_tx: u64::MAX, tx_ring: 65536, mem_rx: 5, ..Socket::default() };
        assert_eq!((socket.in_flight(), socket.unread()), (65536, 0));
    }
}
