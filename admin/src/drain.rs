//! The command drain: asks processes through the control page to move live connections back to
//! TCP, and waits until their pages show it.
//!
//! A process looks at the page at its next wait, poll or new connection; one that sleeps is woken
//! (`wake`). One that sleeps where the library does not see it answers when something else wakes it,
//! such as the other end: the hand-over of either moves both directions and wakes the other.

mod unseen;

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;
use smcr_proto::control::Target;
use smcr_proto::page::State;

use crate::cli::{DrainArgs, Who};
use crate::fail::usage;
use crate::out;
use crate::paths::Places;
use crate::procfs;
use crate::scan::{Connection, Host, is_ours, may_look};
use crate::settings::Settings;
use crate::wake;

/// Time between two looks at the pages.
const PAUSE: Duration = Duration::from_millis(20);
/// Time after which those that have not answered are woken once more.
const AGAIN: Duration = Duration::from_secs(1);

/// What the caller named.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Meant {
    All,
    Process(u32),
    Port(u16),
}

pub fn run(places: &Places, args: &DrainArgs) -> anyhow::Result<()> {
    let (host, before) = in_memory()?;
    let meant = understand(&args.target, &before)?;
    let target = match meant {
        Meant::All => Target::All,
        Meant::Port(port) => Target::Port(port),
        Meant::Process(pid) => process_target(&host, pid)?,
    };
    let asked: Vec<_> = before.iter().filter(|c| meant.concerns(c)).collect();
    let unseen = unseen::count(&host, meant);
    if asked.is_empty() && unseen == 0 {
        return out::print("no such connections are in memory; nothing to move\n");
    }
    Settings::open(places, args.whose)?.drain(target)?;
    rouse(&host, asked.iter().copied());
    let had = asked.len();
    if args.no_wait {
        if unseen > 0 {
            out::note(&format!("note: {}", told(unseen)));
        }
        return out::print(&format!("asked for {had} connections\n"));
    }
    if had > 0 {
        wait(&asked, meant, args.timeout)?;
        out::print(&format!("moved {had} connections to TCP\n"))?;
    }
    match unseen {
        0 => Ok(()),
        // That all have moved is what success means.
        n => bail!("{}", told(n)),
    }
}

fn told(unseen: usize) -> String {
    let who = if nix::unistd::geteuid().is_root() { "smcrctl with CAP_SYS_PTRACE" } else { "root" };
    format!(
        "{unseen} processes cannot be looked into and may have such connections; they are asked as well, and {who} sees \
         whether they have moved"
    )
}

/// Waits until what was asked for is on TCP. Connections that are made meanwhile, and go to memory as before, were not.
fn wait(asked: &[&Connection], meant: Meant, seconds: u32) -> anyhow::Result<()> {
    let inodes: BTreeSet<u64> = asked.iter().map(|c| c.inode).collect();
    let end = Instant::now() + Duration::from_secs(seconds.into());
    let mut next = Instant::now() + AGAIN;
    loop {
        let (host, mut left) = in_memory()?;
        left.retain(|c| meant.concerns(c) && inodes.contains(&c.inode));
        if left.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        if now >= end {
            bail!(
                "{} of {} connections are still in memory after {seconds} s; asked, and to answer when they look at them: {}",
                left.len(),
                asked.len(),
                processes(&left)
            );
        }
        // A byte in the pipe that came while the process looked at something else may have told it nothing.
        if now >= next {
            rouse(&host, left.iter());
            next = now + AGAIN;
        }
        sleep(PAUSE);
    }
}

/// The number and start of a process as it knows them itself: its record's, else the kernel's.
fn process_target(host: &Host, pid: u32) -> anyhow::Result<Target> {
    let mut records = host.families.iter().flat_map(|f| f.page.processes.iter().map(move |p| (f, p)));
    let own = records.find(|(f, p)| f.holder(p.index).is_some_and(|h| h.pid == pid));
    let of_kernel = || Some((procfs::own_pid(pid)?, procfs::start_time(pid)?));
    match own.map(|(_, p)| (p.pid, p.start)).or_else(of_kernel) {
        Some((pid, start)) => Ok(Target::Process { pid, start }),
        None => bail!("no process {pid}; smcrctl sock lists those with the library"),
    }
}

/// The connections that are in memory, one way or both, or on the way there.
fn in_memory() -> anyhow::Result<(Host, Vec<Connection>)> {
    let who = Who::default();
    let host = Host::scan(&who)?;
    let mut found = host.connections(&who);
    found.retain(|c| {
        let s = &c.socket;
        c.is_live() && (s.tx_medium != 0 || s.rx_medium != 0 || s.is(State::Negotiating))
    });
    Ok((host, found))
}

/// Wakes the processes that have these connections.
fn rouse<'a>(host: &Host, meant: impl Iterator<Item = &'a Connection>) {
    let pids: BTreeSet<u32> = meant.map(|c| c.user.pid).collect();
    for family in &host.families {
        for process in &family.page.processes {
            let holder = family.holder(process.index);
            if let Some(holder) = holder.filter(|h| pids.contains(&h.pid)) {
                wake::ring(holder.pid, process.wake.0, process.wake.1);
            }
        }
    }
}

/// Names the processes of connections, a few of them.
fn processes(found: &[Connection]) -> String {
    const MOST: usize = 5;
    let mut users: Vec<_> = found.iter().map(|c| (c.user.pid, &c.user.name)).collect();
    users.sort();
    users.dedup();
    let mut names: Vec<_> = users.iter().take(MOST).map(|(pid, name)| format!("{} ({pid})", out::clean(name))).collect();
    if users.len() > MOST {
        names.push(format!("{} more", users.len() - MOST));
    }
    names.join(", ")
}

impl Meant {
    fn concerns(self, c: &Connection) -> bool {
        match self {
            Meant::All => true,
            Meant::Process(pid) => c.user.pid == pid,
            Meant::Port(port) => c.has_port(port),
        }
    }
}

/// A process that may be asked: one that can be looked into, or one of ours that hides itself.
fn named(pid: u32) -> anyhow::Result<u32> {
    may_look(pid).or_else(|error| if is_ours(pid) { Ok(pid) } else { Err(error) })
}

fn understand(text: &str, found: &[Connection]) -> anyhow::Result<Meant> {
    let wrong = || usage(format!("`{text}`: write a PID, a PORT or all"));
    if text == "all" {
        return Ok(Meant::All);
    }
    if let Some(pid) = text.strip_prefix("pid:") {
        let pid = pid.parse().map_err(|_| wrong())?;
        return Ok(Meant::Process(named(pid)?));
    }
    if let Some(port) = text.strip_prefix("port:").or(text.strip_prefix(':')) {
        return Ok(Meant::Port(port.parse().map_err(|_| wrong())?));
    }
    let number: u32 = text.parse().map_err(|_| wrong())?;
    let pid = Meant::Process(number);
    let port = u16::try_from(number).ok().map(Meant::Port);
    let is_pid = found.iter().any(|c| pid.concerns(c));
    let is_port = port.is_some_and(|port| found.iter().any(|c| port.concerns(c)));
    match (is_pid, is_port, port) {
        (true, true, _) => Err(usage(format!("`{text}` is a process and a port; write pid:{text} or port:{text}"))),
        (false, true, Some(port)) => Ok(port),
        (true, ..) => Ok(pid),
        (false, ..) if procfs::owner(number).is_some() => Ok(Meant::Process(named(number)?)),
        (false, _, Some(port)) => Ok(port),
        (false, _, None) => bail!("no process {number}; see smcrctl sock"),
    }
}
