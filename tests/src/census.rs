//! Owns: counting what a process holds and what is left in the system, so that a leak shows as a
//! difference: descriptors by kind, mappings of the library's memory, resident memory; abstract names of
//! a namespace, files in the usual places, pinned BPF objects.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

use crate::net::Net;
use crate::process::eventually;

/// What one process holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Open descriptors by what they are.
    pub fds: BTreeMap<String, usize>,
    /// Mappings of memory shared with peers.
    pub regions: usize,
    /// Resident, private or anonymous (KiB): the shared memory of others is not counted.
    pub anonymous: u64,
}

impl Census {
    pub fn of(pid: i32) -> Result<Census> {
        let mut all = Census::default();
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            *all.fds.entry(kind(&target.to_string_lossy())).or_default() += 1;
        }
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        all.regions = maps.lines().filter(|l| l.contains("smcr-region")).count();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find(|l| l.starts_with("RssAnon:")).context("RssAnon")?;
        all.anonymous = line.split_whitespace().nth(1).context("RssAnon")?.parse()?;
        Ok(all)
    }

    /// As if it held so many more eventfds: what the last peer that died was to be woken by stays until the process sleeps, or meets
    /// the next one. A leak grows with each peer.
    pub fn with_eventfds_of_a_peer(mut self, most: usize) -> Census {
        *self.fds.entry("anon_inode:[eventfd]".into()).or_default() += most;
        self
    }

    /// Descriptors in all.
    pub fn descriptors(&self) -> usize {
        self.fds.values().sum()
    }

    /// What it holds more of than before, in words; empty: nothing. Of each kind there may be `slack` more
    /// (what is made when it is first needed); memory may grow by so many KiB.
    pub fn leaked_since(&self, before: &Census, slack: usize, memory: u64) -> Vec<String> {
        let mut all = Vec::new();
        for (kind, n) in &self.fds {
            let was = before.fds.get(kind).copied().unwrap_or(0);
            if *n > was + slack {
                all.push(format!("{kind}: {was} before, {n} now"));
            }
        }
        if self.regions > before.regions {
            all.push(format!("regions: {} before, {} now", before.regions, self.regions));
        }
        if self.anonymous > before.anonymous + memory {
            all.push(format!("memory: {} KiB before, {} now", before.anonymous, self.anonymous));
        }
        all
    }
}

/// "socket:[123]" and "pipe:[7]" without their numbers.
fn kind(target: &str) -> String {
    target.split(":[").next().unwrap_or(target).trim_end_matches(" (deleted)").to_string()
        + if target.starts_with("anon_inode:[") { &target["anon_inode".len()..] } else { "" }
}

/// Waits until no process of a namespace has an abstract name of the library's: their owners have ended.
pub fn await_no_names(net: &Net) -> Result<()> {
    eventually("no abstract names", || Ok(names(net)? == 0))
}

/// The library's abstract names in a namespace.
pub fn names(net: &Net) -> Result<usize> {
    Ok(net.read("net/unix")?.lines().filter(|l| l.contains("@smcr") || l.contains("@@smcr")).count())
}

/// What is left in the system beside processes and their namespaces: files in the usual places, pinned BPF objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    pub files: Vec<String>,
    pub pinned: Vec<String>,
}

impl System {
    pub fn now() -> System {
        System { files: files(), pinned: pinned() }
    }

    /// Nothing more is there than was then. Other tests beside this one may have theirs for a moment.
    pub fn ensure_same(&self) -> Result<()> {
        let mut more = Vec::new();
        eventually("nothing is left in the system", || {
            let now = System::now();
            let is_new = |was: &[String], name: &String| !was.contains(name);
            more = now.files.into_iter().filter(|name| is_new(&self.files, name)).collect();
            more.extend(now.pinned.into_iter().filter(|name| is_new(&self.pinned, name)));
            Ok(more.is_empty())
        })
        .with_context(|| format!("files or BPF objects are left: {more:?}"))
    }
}

/// Pinned BPF objects, all of them.
fn pinned() -> Vec<String> {
    let mut all = Vec::new();
    let mut dirs = vec![std::path::PathBuf::from("/sys/fs/bpf")];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                _ => all.push(entry.path().display().to_string()),
            }
        }
    }
    all.sort();
    all
}

/// The library's files in the usual places.
fn files() -> Vec<String> {
    let temp = std::env::temp_dir();
    let dirs = ["/dev/shm".as_ref(), "/run".as_ref(), "/var/tmp".as_ref(), temp.as_path()];
    let mut all: Vec<String> = dirs
        .iter()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flat_map(|entries| entries.flatten())
        .map(|e| e.path().display().to_string())
        .filter(|name| name.rsplit('/').next().is_some_and(|n| n == "smcr" || n.starts_with("smcr-")))
        .collect();
    all.sort();
    all
}
