//! A family page that a test writes: header, records of processes, connections and link groups. Used
//! by `fake` and `many`, whose processes have it open.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};
use smcr_proto::page::link::{self, Record};
use smcr_proto::page::{self, State, header, process, socket};

/// Room for records, and their size: larger than the public part, as the library's are.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub processes: usize,
    pub sockets: usize,
    pub socket: usize,
}

pub struct Page {
    pub file: File,
    pub sizes: Sizes,
}

impl Page {
    /// A page with its header; it says that no socket record is in use yet.
    pub fn new(sizes: Sizes) -> Page {
        let file = File::from(memfd_create(page::MEMFD_NAME, MFdFlags::MFD_CLOEXEC).unwrap());
        let page = Page { file, sizes };
        let end = page.link_offset() + sizes.processes * link::EACH * link::LEN;
        page.file.set_len(end as u64).unwrap();
        for (at, n) in [
            (header::VERSION, page::VERSION as usize),
            (header::PROC_OFF, header::LEN),
            (header::PROC_SIZE, process::LEN),
            (header::PROC_CAP, sizes.processes),
            (header::SOCK_OFF, page.socket_offset()),
            (header::SOCK_SIZE, sizes.socket),
            (header::SOCK_CAP, sizes.sockets),
            (header::LINK_OFF, page.link_offset()),
            (header::LINK_SIZE, link::LEN),
            (header::LINK_CAP, sizes.processes * link::EACH),
        ] {
            page.word(at, n as u32);
        }
        page.put(header::MAGIC, &page::MAGIC);
        page
    }

    fn socket_offset(&self) -> usize {
        header::LEN + self.sizes.processes * process::LEN
    }

    fn link_offset(&self) -> usize {
        self.socket_offset() + self.sizes.sockets * self.sizes.socket
    }

    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.file.write_all_at(bytes, at as u64).unwrap();
    }

    pub fn word(&self, at: usize, n: u32) {
        self.put(at, &n.to_le_bytes());
    }

    /// Where a process record has this field.
    pub fn of_process(&self, index: usize, field: usize) -> usize {
        header::LEN + index * process::LEN + field
    }

    /// A record of a process that calls itself `sleep`.
    pub fn process(&self, index: usize, pid: u32, start: u64) {
        let at = |field| self.of_process(index, field);
        self.word(at(process::PID), pid);
        self.word(at(process::ENABLED), 1);
        self.put(at(process::START), &start.to_le_bytes());
        self.put(at(process::NAME), b"sleep");
        self.word(at(process::LIB_VERSION), 0x0001_0203);
    }

    /// A record of a connection, and its place, where more can be put.
    pub fn socket(&self, index: usize, fd: i32, state: State, reason: u32, media: [u8; 2], ends: Option<(SocketAddr, SocketAddr)>) -> usize {
        let at = self.socket_offset() + index * self.sizes.socket;
        for (field, n) in [(socket::STATE, state as u32), (socket::REASON, reason), (socket::FD, fd as u32), (socket::ROLE, 1)] {
            self.word(at + field, n);
        }
        self.put(at + socket::TX_MEDIUM, &media);
        if let Some((local, peer)) = ends {
            self.put(at + socket::FAMILY, &2u16.to_le_bytes());
            for (addr, ip, port) in [(local, socket::LOCAL_ADDR, socket::LOCAL_PORT), (peer, socket::PEER_ADDR, socket::PEER_PORT)] {
                let IpAddr::V4(v4) = addr.ip() else { panic!("IPv4") };
                self.put(at + ip, &v4.octets());
                self.put(at + port, &addr.port().to_le_bytes());
            }
        }
        self.word(header::SOCK_HIGH, self.sizes.sockets as u32);
        at
    }

    /// A link group of the process with this record.
    pub fn link_group(&self, process: usize, place: usize, record: &Record) {
        let at = self.link_offset() + (process * link::EACH + place) * link::LEN;
        let bytes: Vec<u8> = record.words().iter().flat_map(|w| w.to_ne_bytes()).collect();
        self.put(at, &bytes);
    }
}

/// When a process started, as its record says it.
pub fn start_of(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit(") ").next().unwrap();
    fields.split(' ').nth(19).unwrap().parse().unwrap()
}
