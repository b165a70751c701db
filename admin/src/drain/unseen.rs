//! Processes that cannot be looked into and may have connections in memory. Used by the parent.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::Meant;
use crate::procfs::{self, Kind, TcpLine};
use crate::scan::Host;

/// Connections of a network namespace, by the number of its table in /proc: the namespace of a process that cannot
/// be looked into has no other name.
type Tables = HashMap<u64, Vec<TcpLine>>;

/// How many may be concerned. Those have a TCP connection that no process has which can be looked into; most
/// that hide themselves (an agent for keys) have none.
pub fn count(host: &Host, meant: Meant) -> usize {
    let is_meant = |pid: &u32| !matches!(meant, Meant::Process(other) if other != *pid);
    let hidden: Vec<u32> = host.unreadable.iter().copied().filter(is_meant).collect();
    if hidden.is_empty() {
        return 0;
    }
    // Before and behind the look at the others: what is made or closed meanwhile is not taken for theirs.
    let mut tables = tables(&hidden);
    let known = known_sockets();
    let again = self::tables(&hidden);
    for (number, lines) in &mut tables {
        let still: HashSet<u64> = again.get(number).into_iter().flatten().map(|l| l.inode).collect();
        lines.retain(|l| !known.contains(&l.inode) && still.contains(&l.inode));
    }
    hidden.into_iter().filter(|pid| may_have(*pid, meant, &tables)).count()
}

fn tables(pids: &[u32]) -> Tables {
    let mut tables = Tables::new();
    for pid in pids {
        let Some(number) = table_of(*pid) else { continue };
        tables.entry(number).or_insert_with(|| {
            let mut lines = procfs::tcp(&pid.to_string());
            // An inode 0 has no descriptor any more.
            lines.retain(|l| !l.listening && l.inode != 0);
            lines
        });
    }
    tables
}

fn table_of(pid: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/net/tcp")).ok()?.ino())
}

/// The sockets of all processes that can be looked into.
fn known_sockets() -> HashSet<u64> {
    let pids = procfs::pids().unwrap_or_default().into_iter();
    let fds = pids.filter_map(|pid| procfs::descriptors(pid).ok()).flatten();
    fds.filter_map(|(_, kind)| match kind {
        Kind::Socket(inode) => Some(inode),
        _ => None,
    })
    .collect()
}

/// Whether one of these connections may be its.
fn may_have(pid: u32, meant: Meant, tables: &Tables) -> bool {
    let lines = table_of(pid).and_then(|number| tables.get(&number));
    let user = procfs::user(pid);
    let is_root = nix::unistd::geteuid().is_root();
    lines.into_iter().flatten().any(|l| match meant {
        Meant::Port(port) if ![l.local, l.peer].iter().any(|a| a.port() == port) => false,
        // What other users have, a user cannot know.
        _ => is_root || Some(l.uid) == user,
    })
}
