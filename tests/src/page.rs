//! Owns: the family page of a process, held open so that it can be read when the process has died.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use smcr_proto::page::{State, header, socket};

/// A page.
pub struct Page(File);

/// A connection as the page shows it.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    pub state: Option<State>,
    pub role: u32,
    pub local_port: u16,
    pub peer_port: u16,
    pub tx_switches: u32,
    pub rx_switches: u32,
    pub bells_tx: u32,
    pub bells_rx: u32,
    pub memory: (u64, u64),
    pub tcp: (u64, u64),
}

impl Record {
    /// The accepting end died between giving its nonce and taking the proof, which may have stood in its stream.
    pub fn awaits_proof(&self) -> bool {
        const SERVER: u32 = 2;
        self.role == SERVER && self.rx_switches == 0 && self.state == Some(State::Negotiating)
    }
}

impl Page {
    /// The page of a living process; None: it has none.
    pub fn of(pid: i32) -> Result<Option<Page>> {
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            if target.to_string_lossy().contains(smcr_proto::page::MEMFD_NAME) {
                return Ok(Some(Page(File::open(entry.path())?)));
            }
        }
        Ok(None)
    }

    fn word(&self, at: u64) -> Result<u32> {
        let mut b = [0; 4];
        self.0.read_exact_at(&mut b, at)?;
        Ok(u32::from_ne_bytes(b))
    }

    /// Records that were ever in use.
    pub fn high(&self) -> Result<u32> {
        self.word(header::SOCK_HIGH as u64)
    }

    /// The connections in it.
    pub fn records(&self) -> Result<Vec<Record>> {
        let (off, size) = (self.word(header::SOCK_OFF as u64)?, self.word(header::SOCK_SIZE as u64)?);
        let mut all = Vec::new();
        for i in 0..self.high()? {
            let mut b = [0; socket::PUBLIC_LEN];
            self.0.read_exact_at(&mut b, u64::from(off) + u64::from(i) * u64::from(size))?;
            let record = parse(&b).context("a record")?;
            if record.state != Some(State::Free) {
                all.push(record);
            }
        }
        Ok(all)
    }

    /// The record of a connection by its two ports.
    pub fn find(&self, local: u16, peer: u16) -> Result<Option<Record>> {
        let it = |r: &Record| r.local_port == local && r.peer_port == peer;
        Ok(self.records()?.into_iter().rfind(it))
    }
}

fn parse(b: &[u8; socket::PUBLIC_LEN]) -> Option<Record> {
    let short = |at: usize| Some(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_ne_bytes(b.get(at..at + 8)?.try_into().ok()?));
    Some(Record {
        state: State::from_code(word(socket::STATE)?),
        role: word(socket::ROLE)?,
        local_port: short(socket::LOCAL_PORT)?,
        peer_port: short(socket::PEER_PORT)?,
        tx_switches: word(socket::TX_SWITCHES)?,
        rx_switches: word(socket::RX_SWITCHES)?,
        bells_tx: word(socket::BELLS_TX)?,
        bells_rx: word(socket::BELLS_RX)?,
        memory: (long(socket::MEM_TX)?, long(socket::MEM_RX)?),
        tcp: (long(socket::TCP_TX)?, long(socket::TCP_RX)?),
    })
}
