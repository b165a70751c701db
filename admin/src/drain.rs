//! The command drain: asks processes through the control page to move live connections back to
//! TCP, and waits until their pages show it.

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
use crate::scan::{Connection, Host};
use crate::settings::Settings;

/// Time between two looks at the pages.
const PAUSE: Duration = Duration::from_millis(20);

/// What the caller named.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Meant {
    All,
    Process(u32),
    Port(u16),
}

pub fn run(places: &Places, args: &DrainArgs) -> anyhow::Result<()> {
    let before = in_memory()?;
    let meant = understand(&args.target, &before)?;
    let target = match meant {
        Meant::All => Target::All,
        Meant::Port(port) => Target::Port(port),
        Meant::Process(pid) => match (procfs::own_pid(pid), procfs::start_time(pid)) {
            (Some(pid), Some(start)) => Target::Process { pid, start },
            _ => bail!("process {pid} is gone"),
        },
    };
    let had = before.iter().filter(|c| meant.concerns(c)).count();
    if had == 0 {
        return out::print("no such connections are in memory; nothing to move\n");
    }
    Settings::open(places, args.scope)?.drain(target)?;
    if args.no_wait {
        return out::print(&format!("asked for {had} connections\n"));
    }
    let end = Instant::now() + Duration::from_secs(args.timeout.into());
    loop {
        let left = in_memory()?.iter().filter(|c| meant.concerns(c)).count();
        if left == 0 {
            return out::print(&format!("moved {had} connections to TCP\n"));
        }
        if Instant::now() >= end {
            bail!(
                "{left} of {had} connections are still in memory after {} s; a stopped or blocked process answers late, see smcrctl sock",
                args.timeout
            );
        }
        sleep(PAUSE);
    }
}

/// The connections that are in memory or on the way there.
fn in_memory() -> anyhow::Result<Vec<Connection>> {
    let who = Who::default();
    let mut found = Host::scan(&who)?.connections(&who);
    found.retain(|c| c.socket.is(State::Accelerated) || c.socket.is(State::Negotiating));
    Ok(found)
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

fn understand(text: &str, found: &[Connection]) -> anyhow::Result<Meant> {
    let wrong = || usage(format!("`{text}`: write a PID, a PORT or all"));
    if text == "all" {
        return Ok(Meant::All);
    }
    if let Some(pid) = text.strip_prefix("pid:") {
        return Ok(Meant::Process(pid.parse().map_err(|_| wrong())?));
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
        (true, true, _) => Err(usage(format!(
            "`{text}` is a process and a port; write pid:{text} or port:{text}"
        ))),
        (false, true, Some(port)) => Ok(port),
        (true, ..) => Ok(pid),
        (false, ..) if procfs::owner(number).is_some() => Ok(pid),
        (false, _, Some(port)) => Ok(port),
        (false, _, None) => bail!("no process {number}; see smcrctl sock"),
    }
}
