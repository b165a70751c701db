//! Counters of processes and their sums, with what connections in use add to them. Used by stats,
//! top and the Prometheus output.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use smcr_proto::page::{COUNTERS, Counter, SIZES, State};

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
    /// Stands for all that ended in its family and whose records were given to others.
    pub is_of_the_gone: bool,
    /// The page that shows it ([`FamilyView::id`](crate::scan::FamilyView)).
    pub family: u64,
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
    Counter::is_gauge(index)
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
            // The record has the name of the thread that made the first socket.
            let name = holder.map_or(&process.name, |h| &h.name);
            if who.pid.is_some_and(|p| holder.is_none_or(|h| h.pid != p)) || !matches_program(who, name) && !matches_program(who, &process.name) {
                continue;
            }
            let mut counters = [0; COUNTERS.len()];
            counters.iter_mut().zip(&process.counters).for_each(|(to, from)| *to = *from);
            for socket in live.get(&process.index).into_iter().flatten() {
                add_live(&mut counters, socket);
            }
            for (_, n) in counters.iter_mut().enumerate().filter(|(i, _)| is_gauge(*i)) {
                *n = gauge(*n, holder.is_some());
            }
            found.push(ProcessTotals {
                pid: holder.map(|h| h.pid),
                is_of_the_gone: process.is_of_the_gone(),
                family: family.id,
                uid: holder.map(|h| h.uid),
                own_pid: process.pid,
                start: process.start,
                name: name.clone(),
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

/// The own number and the start of every process that has a record, whatever the options left out.
pub fn known(host: &Host) -> BTreeSet<(u32, u64)> {
    let records = host.families.iter().flat_map(|f| &f.page.processes);
    records.map(|p| (p.pid, p.start)).collect()
}

/// What a gauge shows. Of what a process had that is gone, nothing is there any more; below zero is what a
/// forked child counts under an older library, where it took off what it had never counted.
fn gauge(value: u64, is_there: bool) -> u64 {
    if is_there { (value as i64).max(0) as u64 } else { 0 }
}

fn add_live(counters: &mut Counters, socket: &Socket) {
    let mut add = |counter: Counter, n: u64| {
        if let Some(sum) = counters.get_mut(counter as usize) {
            *sum = sum.wrapping_add(n);
        }
    };
    add(Counter::MemTxBytes, socket.mem_tx);
    add(Counter::MemRxBytes, socket.mem_rx);
    add(Counter::TcpTxBytes, socket.tcp_tx);
    add(Counter::TcpRxBytes, socket.tcp_rx);
    add(Counter::TcpOps, socket.tcp_ops.into());
    if socket.is_rdma {
        let [sends, receives] = socket.sizes.map(|way| way.iter().fold(0u64, |a, b| a.wrapping_add(*b)));
        add(Counter::RdmaTxBytes, socket.mem_tx);
        add(Counter::RdmaRxBytes, socket.mem_rx);
        add(Counter::RdmaTx, sends);
        add(Counter::RdmaRx, receives);
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
        add(&mut sum, &process.counters);
    }
    sum
}

/// The sum over the processes of each family. What one has counted goes to another record of its family when it ends,
/// and the sum stays.
pub fn by_family(processes: &[ProcessTotals]) -> BTreeMap<u64, Counters> {
    let mut families: BTreeMap<u64, Counters> = BTreeMap::new();
    for process in processes {
        add(families.entry(process.family).or_insert([0; COUNTERS.len()]), &process.counters);
    }
    families
}

/// What families have counted since. One that is gone took its counters with it: what it did last is not known, and takes
/// nothing off what the others did.
pub fn gained(before: &BTreeMap<u64, Counters>, now: &BTreeMap<u64, Counters>) -> Counters {
    let mut sum = [0; COUNTERS.len()];
    for (id, counters) in now {
        let old = before.get(id).copied().unwrap_or([0; COUNTERS.len()]);
        let more: Counters = std::array::from_fn(|i| counters[i].saturating_sub(old[i]));
        add(&mut sum, &more);
    }
    sum
}

/// Adds counters to others.
pub fn add(sum: &mut Counters, more: &Counters) {
    for (to, from) in sum.iter_mut().zip(more) {
        *to = to.wrapping_add(*from);
    }
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
#[derive(Default, Serialize)]
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
        // Of one that has gone to TCP one way alone it says why.
        let is_in_memory = s.is(State::Accelerated) && s.tx_medium != 0 && s.rx_medium != 0;
        if !is_in_memory && s.reason != 0 {
            *counts.reason.entry(s.reason_word()).or_default() += 1;
        }
    }
    counts
}

/// What went over one medium.
#[derive(Serialize, Default, Debug, PartialEq, Eq)]
pub struct Transport {
    pub name: &'static str,
    /// Connections in use, one way or both.
    pub now: u64,
    /// Those that it carried, or still does; not known of TCP.
    pub connections: Option<u64>,
    pub sends: Option<u64>,
    pub receives: Option<u64>,
    /// Sends and receives together, of which TCP alone is counted.
    pub requests: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

/// The media, shared memory first.
pub fn transports(sum: &Counters, in_use: &InUse) -> [Transport; 3] {
    let value = |counter: Counter| sum.get(counter as usize).copied().unwrap_or(0);
    let sizes = |from: Counter| {
        let classes = sum.get(from as usize..from as usize + SIZES.len()).unwrap_or(&[]);
        classes.iter().fold(0u64, |a, b| a.wrapping_add(*b))
    };
    let now = |word: &str| {
        let with = |(mode, n): (&String, &u64)| mode.split('/').any(|m| m == word).then_some(*n);
        in_use.mode.iter().filter_map(with).sum()
    };
    let (sends, receives) = (value(Counter::RdmaTx), value(Counter::RdmaRx));
    let rdma = Transport {
        name: "rdma",
        now: now("rdma"),
        connections: Some(value(Counter::Rdma)),
        sends: Some(sends),
        receives: Some(receives),
        requests: sends.wrapping_add(receives),
        bytes_sent: value(Counter::RdmaTxBytes),
        bytes_received: value(Counter::RdmaRxBytes),
    };
    // What is not RDMA is shared memory. Pages are read while they change: never below zero.
    let sends = sizes(Counter::Tx64).saturating_sub(sends);
    let receives = sizes(Counter::Rx64).saturating_sub(receives);
    let shm = Transport {
        name: "shm",
        now: now("shm"),
        connections: Some(value(Counter::Accelerated).saturating_sub(value(Counter::Rdma))),
        sends: Some(sends),
        receives: Some(receives),
        requests: sends.wrapping_add(receives),
        bytes_sent: value(Counter::MemTxBytes).saturating_sub(rdma.bytes_sent),
        bytes_received: value(Counter::MemRxBytes).saturating_sub(rdma.bytes_received),
    };
    let tcp = Transport {
        name: "tcp",
        now: now("tcp"),
        requests: value(Counter::TcpOps),
        bytes_sent: value(Counter::TcpTxBytes),
        bytes_received: value(Counter::TcpRxBytes),
        ..Transport::default()
    };
    [shm, rdma, tcp]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_ended_takes_no_rate_off_the_others() {
        let with = |n: u64| {
            let mut counters = [0; COUNTERS.len()];
            counters[Counter::MemTxBytes as usize] = n;
            counters
        };
        let before = [(1, with(1000)), (2, with(500)), (4, with(9))].into();
        let now = [(2, with(700)), (3, with(40)), (4, with(8))].into();
        assert_eq!(gained(&before, &now), with(240));
    }

    #[test]
    fn what_rdma_carried_is_no_shared_memory() {
        let mut sum = [0; COUNTERS.len()];
        for (counter, n) in [
            (Counter::Accelerated, 5),
            (Counter::Rdma, 2),
            (Counter::MemTxBytes, 100),
            (Counter::RdmaTxBytes, 30),
            (Counter::Tx64, 4),
            (Counter::TxMore, 3),
            (Counter::RdmaTx, 6),
            (Counter::TcpOps, 9),
        ] {
            sum[counter as usize] = n;
        }
        let in_use = InUse { mode: [("rdma".into(), 2), ("shm/tcp".into(), 1)].into(), ..InUse::default() };
        let [shm, rdma, tcp] = transports(&sum, &in_use);
        assert_eq!((shm.now, rdma.now, tcp.now), (1, 2, 1));
        assert_eq!((shm.connections, rdma.connections, tcp.connections), (Some(3), Some(2), None));
        assert_eq!((shm.bytes_sent, rdma.bytes_sent), (70, 30));
        assert_eq!((shm.sends, rdma.sends, tcp.requests), (Some(1), Some(6), 9));
    }
}
