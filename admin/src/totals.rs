//! Counters of processes and their sums, with what connections in use add to them. Used by stats,
//! top and the Prometheus output.

use std::collections::BTreeMap;

use smcr_proto::page::{COUNTERS, Counter, State};

use crate::cli::Who;
use crate::family::Socket;
pub use crate::family::reason_word;
use crate::scan::{Host, matches_program};

/// One value for each of [`COUNTERS`].
pub type Counters = [u64; COUNTERS.len()];

/// The counters of one process.
#[derive(Clone)]
pub struct ProcessTotals {
    /// As we see it; none if it ended while relatives keep its page.
    pub pid: Option<u32>,
    pub uid: Option<u32>,
    /// As it sees itself: with the start time, this names a process for good.
    pub own_pid: u32,
    pub start: u64,
    pub name: String,
    pub version: String,
    pub enabled: bool,
    pub counters: Counters,
    /// Connections that ended on TCP, by the reason's number.
    pub ended: BTreeMap<u32, u64>,
}

/// True for a counter that says how much there is now, and never for how much there was.
pub fn is_gauge(index: usize) -> bool {
    index == Counter::Tracked as usize || index == Counter::Memory as usize
}

/// The processes of all pages. Bytes and sizes of connections in use are added to those of ended ones.
pub fn collect(host: &Host, who: &Who) -> Vec<ProcessTotals> {
    let mut found = Vec::new();
    for family in &host.families {
        let mut live: BTreeMap<u32, Vec<&Socket>> = BTreeMap::new();
        for socket in &family.page.sockets {
            live.entry(socket.process).or_default().push(socket);
        }
        for process in &family.page.processes {
            let holder = family.holder(process.index);
            if who.pid.is_some_and(|p| holder.is_none_or(|h| h.pid != p))
                || !matches_program(who, &process.name)
            {
                continue;
            }
            let mut counters = [0; COUNTERS.len()];
            counters
                .iter_mut()
                .zip(&process.counters)
                .for_each(|(to, from)| *to = *from);
            for socket in live.get(&process.index).into_iter().flatten() {
                add_live(&mut counters, socket);
            }
            found.push(ProcessTotals {
                pid: holder.map(|h| h.pid),
                uid: holder.map(|h| h.uid),
                own_pid: process.pid,
                start: process.start,
                name: process.name.clone(),
                version: process.version(),
                enabled: process.enabled,
                counters,
                ended: process.fallbacks.iter().copied().collect(),
            });
        }
    }
    found.sort_by_key(|p| (p.pid, p.own_pid));
    found
}

fn add_live(counters: &mut Counters, socket: &Socket) {
    for (counter, bytes) in [
        (Counter::MemTxBytes, socket.mem_tx),
        (Counter::MemRxBytes, socket.mem_rx),
        (Counter::TcpTxBytes, socket.tcp_tx),
        (Counter::TcpRxBytes, socket.tcp_rx),
    ] {
        if let Some(sum) = counters.get_mut(counter as usize) {
            *sum = sum.wrapping_add(bytes);
        }
    }
    let sizes = counters.iter_mut().skip(Counter::Tx64 as usize);
    for (sum, n) in sizes.zip(socket.sizes.as_flattened()) {
        *sum = sum.wrapping_add(*n);
    }
}

/// The sum over processes.
pub fn sum(processes: &[ProcessTotals]) -> Counters {
    let mut sum = [0u64; COUNTERS.len()];
    for process in processes {
        for (to, from) in sum.iter_mut().zip(&process.counters) {
            *to = to.wrapping_add(*from);
        }
    }
    sum
}

/// Connections that ended on TCP, by the reason's number, over processes.
pub fn ended(processes: &[ProcessTotals]) -> BTreeMap<u32, u64> {
    let mut sum: BTreeMap<u32, u64> = BTreeMap::new();
    for (code, n) in processes.iter().flat_map(|p| &p.ended) {
        let to = sum.entry(*code).or_default();
        *to = to.wrapping_add(*n);
    }
    sum
}

/// Connections in use by state, mode and reason.
#[derive(Default, serde::Serialize)]
pub struct InUse {
    pub state: BTreeMap<String, u64>,
    pub mode: BTreeMap<String, u64>,
    pub reason: BTreeMap<String, u64>,
}

/// Counts the connections in use.
pub fn in_use(host: &Host, who: &Who) -> InUse {
    let mut counts = InUse::default();
    for c in host.connections(who) {
        let s = &c.socket;
        *counts.state.entry(s.state_word()).or_default() += 1;
        if !c.is_live() {
            continue;
        }
        *counts.mode.entry(s.mode_word()).or_default() += 1;
        if !s.is(State::Accelerated) && s.reason != 0 {
            *counts.reason.entry(s.reason_word()).or_default() += 1;
        }
    }
    counts
}
