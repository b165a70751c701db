//! Owns: the family page of a process, held open so that it can be read when the process has died.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use anyhow::{Context, Result, ensure};
use smcr_proto::page::{Counter, State, header, process, socket};

use crate::process::{flip_mean, flipping};
use crate::slow::only_slow;

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

/// What all connections of a page did, also those that have ended, and those of processes that have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Eligible sockets, made or accepted; listeners as well.
    pub sockets: u64,
    /// Connections that moved to memory at least once.
    pub accelerated: u64,
    /// Sending directions that went back to TCP because of `SMCR_FLIP`.
    pub flips: u64,
    /// Payload through memory and through TCP, sent and received.
    pub memory: u64,
    pub tcp: u64,
}

impl Totals {
    /// Those of a living process; nothing where it has no page.
    pub fn of(pid: i32) -> Result<Totals> {
        Page::of(pid)?.map_or(Ok(Totals::default()), |page| page.totals())
    }

    /// What came since then.
    pub fn since(self, before: Totals) -> Totals {
        Totals {
            sockets: self.sockets.saturating_sub(before.sockets),
            accelerated: self.accelerated.saturating_sub(before.accelerated),
            flips: self.flips.saturating_sub(before.flips),
            memory: self.memory.saturating_sub(before.memory),
            tcp: self.tcp.saturating_sub(before.tcp),
        }
    }

    /// Says how many of its connections were in memory. At least `few` must have been, and so many bytes gone
    /// through it; while connections flip, and much has gone, some of them must have.
    pub fn ensure_in_memory(&self, what: &str, few: u64, bytes: u64) -> Result<()> {
        let flips = if flipping() { format!(", {} flips", self.flips) } else { String::new() };
        let text = format!(
            "{what}: {} of {} connections were in memory, {} of {} bytes{flips}",
            self.accelerated,
            self.sockets,
            self.memory,
            self.memory + self.tcp
        );
        println!("{text}");
        if self.accelerated < few || self.memory < bytes {
            return Err(only_slow(format!("{text}: at least {few} and {bytes} are asked for")));
        }
        let much = |mean| self.memory >= 32 * mean * self.accelerated;
        ensure!(self.flips > 0 || !flip_mean().is_some_and(much), "{text}: none flipped");
        Ok(())
    }

    /// Nothing was in memory.
    pub fn ensure_on_tcp(&self, what: &str) -> Result<()> {
        ensure!(self.accelerated + self.memory == 0, "{what}: in memory: {self:?}");
        Ok(())
    }
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, more: Totals) {
        self.sockets += more.sockets;
        self.accelerated += more.accelerated;
        self.flips += more.flips;
        self.memory += more.memory;
        self.tcp += more.tcp;
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

    /// What all connections in it did.
    pub fn totals(&self) -> Result<Totals> {
        let (off, size) = (self.word(header::PROC_OFF as u64)?, self.word(header::PROC_SIZE as u64)?);
        let mut all = Totals::default();
        for i in 0..self.word(header::PROC_HIGH as u64)? {
            let counter = |which: Counter| -> Result<u64> {
                let mut b = [0; 8];
                let at = process::COUNTERS as u64 + 8 * which as u64;
                self.0.read_exact_at(&mut b, u64::from(off) + u64::from(i) * u64::from(size) + at)?;
                Ok(u64::from_ne_bytes(b))
            };
            let sum = |of: &[Counter]| of.iter().map(|which| counter(*which)).sum::<Result<u64>>();
            all.sockets += counter(Counter::Sockets)?;
            all.accelerated += counter(Counter::Accelerated)?;
            all.flips += counter(Counter::SwitchTxTcp)?.saturating_sub(counter(Counter::Spills)?);
            all.memory += sum(&[Counter::MemTxBytes, Counter::MemRxBytes])?;
            all.tcp += sum(&[Counter::TcpTxBytes, Counter::TcpRxBytes])?;
        }
        // Those that live have their bytes with them.
        for record in self.records()? {
            all.memory += record.memory.0 + record.memory.1;
            all.tcp += record.tcp.0 + record.tcp.1;
        }
        Ok(all)
    }

    /// The record of a connection by its two ports.
    pub fn find(&self, local: u16, peer: u16) -> Result<Option<Record>> {
        let it = |r: &Record| r.local_port == local && r.peer_port == peer;
        Ok(self.records()?.into_iter().rfind(it))
    }
}

/// The pages of processes that come and go, each of them once: relatives may share one.
#[derive(Default)]
pub struct Pages(BTreeMap<u64, Page>);

impl Pages {
    /// Keeps the page of a living process, if it has one by now.
    pub fn keep(&mut self, pid: i32) -> Result<()> {
        // It may have ended by itself.
        if let Some(page) = Page::of(pid).ok().flatten() {
            self.0.entry(page.0.metadata()?.ino()).or_insert(page);
        }
        Ok(())
    }

    /// What all of them did until now.
    pub fn totals(&self) -> Result<Totals> {
        let mut all = Totals::default();
        for page in self.0.values() {
            all += page.totals()?;
        }
        Ok(all)
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
