//! What `stats --reset` remembers: the counters of each process at that time, in a file of this
//! user. The pages are not touched, so every user has a zero of its own. Used by `stats`.
//!
//! The file is replaced as a whole, so that a reader never sees half of one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use smcr_proto::page::COUNTERS;

use crate::paths::Places;
use crate::store;
use crate::totals::{ProcessTotals, is_gauge};

#[derive(Serialize, Deserialize, Default)]
pub struct Baseline {
    /// Seconds since 1970 at the reset.
    pub taken: u64,
    /// The start of the machine that the process numbers belong to.
    boot: String,
    /// Names of the counters, in their order in `processes`.
    names: Vec<String>,
    /// "FAMILY:PID:START", the last two as the process sees itself, and its counters: an exec in place begins another family.
    processes: BTreeMap<String, Vec<u64>>,
    /// Connections that ended on TCP, by the reason's number.
    #[serde(default)]
    ended: BTreeMap<String, BTreeMap<u32, u64>>,
}

impl Baseline {
    pub fn now(processes: &[ProcessTotals]) -> Baseline {
        let taken = SystemTime::now().duration_since(UNIX_EPOCH);
        Baseline {
            taken: taken.map_or(0, |d| d.as_secs()),
            boot: boot_id(),
            names: COUNTERS.iter().map(|(name, _)| name.to_string()).collect(),
            processes: processes.iter().map(|p| (key(p), p.counters.to_vec())).collect(),
            ended: processes.iter().map(|p| (key(p), p.ended.clone())).collect(),
        }
    }

    /// The last reset of this user since the machine started, if there was one.
    pub fn load(places: &Places) -> anyhow::Result<Option<Baseline>> {
        // Who has no home has reset nothing.
        let Ok(path) = path(places) else { return Ok(None) };
        let text = match store::read_state(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        let baseline: Baseline = serde_json::from_str(&text).with_context(|| format!("{} is damaged; run smcrctl stats -r", path.display()))?;
        Ok(Some(baseline).filter(|b| b.boot == boot_id()))
    }

    /// Counts from now on: `processes` are all there are, or some of them. Two resets at a time come
    /// one after the other.
    pub fn reset(places: &Places, processes: &[ProcessTotals], are_all: bool) -> anyhow::Result<()> {
        let path = path(places)?;
        let _lock = store::lock_beside(&path)?;
        let mut baseline = Baseline::now(processes);
        // One that is damaged is no reason not to begin anew.
        if !are_all && let Ok(Some(old)) = Baseline::load(places) {
            baseline.keep_others(old);
        }
        store::replace_file(&path, &serde_json::to_string(&baseline)?)
    }

    /// A reset of some processes only: what was remembered of the others holds on.
    pub fn keep_others(&mut self, old: Baseline) {
        if old.names != self.names {
            return; // of another version, whose order is another
        }
        for (key, counters) in old.processes {
            self.processes.entry(key).or_insert(counters);
        }
        for (key, ended) in old.ended {
            self.ended.entry(key).or_insert(ended);
        }
    }

    /// Takes off what was there at the reset. Gauges stay as they are. `known`: every process that has a record.
    pub fn subtract(&self, processes: &mut [ProcessTotals], known: &BTreeSet<(u32, u64)>) {
        let known: BTreeSet<String> = known.iter().map(|(pid, start)| name(*pid, *start)).collect();
        for process in processes {
            if let Some(key) = self.key_of(process) {
                self.take_off(process, &key);
            }
            if process.is_of_the_gone {
                // What a process has counted that was there at the reset is here, once its record is given to another.
                let family = process.family.to_string();
                let parts = self.processes.keys().filter_map(|key| Some((key, key.split_once(':')?)));
                let gone = parts.filter(|(_, (id, name))| *id == family && !known.contains(*name));
                gone.for_each(|(key, _)| self.take_off(process, key));
            }
            process.ended.retain(|_, n| *n > 0);
        }
    }

    /// What the process was at the reset: that in its family, or the one that has gone apart from another since, with all that it had.
    fn key_of(&self, process: &ProcessTotals) -> Option<String> {
        let own = key(process);
        if self.processes.contains_key(&own) {
            return Some(own);
        }
        let name = name(process.own_pid, process.start);
        let has_no_more = |old: &[u64]| {
            let counts = COUNTERS.iter().enumerate().filter(|(i, _)| !is_gauge(*i));
            counts.map(|(i, (name, _))| (i, self.before(old, name))).all(|(i, before)| before <= process.counters[i])
        };
        let same = self.processes.iter().filter(|(key, _)| of_process(key) == name);
        same.filter(|(_, old)| has_no_more(old)).map(|(key, _)| key.clone()).next()
    }

    /// The counter of this name among those of a process at the reset.
    fn before(&self, old: &[u64], name: &str) -> u64 {
        let at = self.names.iter().position(|n| n == name);
        at.and_then(|at| old.get(at)).copied().unwrap_or(0)
    }

    /// Takes off what the process with this key had at the reset.
    fn take_off(&self, from: &mut ProcessTotals, key: &str) {
        let Some(old) = self.processes.get(key) else { return };
        for (i, (name, _)) in COUNTERS.iter().enumerate() {
            let before = self.before(old, name);
            if let Some(now) = from.counters.get_mut(i).filter(|_| !is_gauge(i)) {
                *now = now.saturating_sub(before);
            }
        }
        for (code, before) in self.ended.get(key).into_iter().flatten() {
            if let Some(now) = from.ended.get_mut(code) {
                *now = now.saturating_sub(*before);
            }
        }
    }
}

fn key(process: &ProcessTotals) -> String {
    format!("{}:{}", process.family, name(process.own_pid, process.start))
}

/// "PID:START" of a key.
fn of_process(key: &str) -> &str {
    key.split_once(':').map_or(key, |(_, name)| name)
}

fn name(pid: u32, start: u64) -> String {
    format!("{pid}:{start}")
}

fn path(places: &Places) -> anyhow::Result<PathBuf> {
    Ok(places.state()?.join("stats-baseline.json"))
}

fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use smcr_proto::page::{self, Counter};

    fn process(pid: u32, sockets: u64, tracked: u64) -> ProcessTotals {
        let mut counters = [0; COUNTERS.len()];
        counters[Counter::Sockets as usize] = sockets;
        counters[Counter::Tracked as usize] = tracked;
        ProcessTotals {
            pid: Some(pid),
            is_of_the_gone: pid == page::process::ENDED,
            family: 1,
            own_pid: pid,
            start: 1,
            name: "x".into(),
            version: "0.1.0".into(),
            uid: Some(1),
            ended: [(2, sockets)].into(),
            enabled: true,
            counters,
        }
    }

    fn known(processes: &[ProcessTotals]) -> BTreeSet<(u32, u64)> {
        processes.iter().map(|p| (p.own_pid, p.start)).collect()
    }

    /// A child that ended since the reset, and whose record serves another: what it had at the reset is in the record of
    /// the gone now.
    #[test]
    fn what_the_gone_had_at_the_reset_is_not_counted_anew() {
        let baseline = Baseline::now(&[process(1, 10, 1), process(2, 1000, 1), process(3, 100, 1)]);
        let mut other = process(page::process::ENDED, 50, 0);
        other.family = 2;
        let mut now = [process(1, 11, 1), process(3, 100, 1), process(page::process::ENDED, 1007, 0), other];
        let known = known(&now);
        baseline.subtract(&mut now, &known);
        assert_eq!(now.each_ref().map(|p| p.counters[Counter::Sockets as usize]), [1, 0, 7, 50]);
        assert_eq!(now[2].ended[&2], 7);
    }

    #[test]
    fn only_counters_of_known_processes_are_reset() {
        let baseline = Baseline::now(&[process(1, 10, 3)]);
        let mut now = [process(1, 15, 2), process(2, 7, 1)];
        let known = known(&now);
        baseline.subtract(&mut now, &known);
        assert_eq!(now[0].counters[Counter::Sockets as usize], 5);
        assert_eq!(now[0].counters[Counter::Tracked as usize], 2);
        assert_eq!(now[1].counters[Counter::Sockets as usize], 7);
        assert_eq!((now[0].ended[&2], now[1].ended[&2]), (5, 7));
    }

    /// One that has exec'd in place begins at 0, beside the record of the program before perhaps; one that has gone apart has all that it had.
    #[test]
    fn a_process_is_known_by_its_family() {
        let baseline = Baseline::now(&[process(1, 1000, 0), process(2, 10, 0)]);
        let mut now = [process(1, 500, 0), process(1, 1003, 0), process(2, 14, 0)];
        (now[0].family, now[2].family) = (7, 8);
        let known = known(&now);
        baseline.subtract(&mut now, &known);
        assert_eq!(now.each_ref().map(|p| p.counters[Counter::Sockets as usize]), [500, 3, 4]);
    }

    #[test]
    fn a_reset_of_one_leaves_the_others() {
        let old = Baseline::now(&[process(1, 10, 3), process(2, 4, 0)]);
        let mut baseline = Baseline::now(&[process(2, 6, 0)]);
        baseline.keep_others(old);
        let mut now = [process(1, 15, 2), process(2, 7, 1)];
        let known = known(&now);
        baseline.subtract(&mut now, &known);
        assert_eq!(now[0].counters[Counter::Sockets as usize], 5);
        assert_eq!(now[1].counters[Counter::Sockets as usize], 1);
    }

    #[test]
    fn counters_are_found_by_name() {
        let mut baseline = Baseline::now(&[process(1, 10, 0)]);
        baseline.names.rotate_left(1);
        for old in baseline.processes.values_mut() {
            old.rotate_left(1);
        }
        let mut now = [process(1, 11, 0)];
        let known = known(&now);
        baseline.subtract(&mut now, &known);
        assert_eq!(now[0].counters[Counter::Sockets as usize], 1);
    }
}
