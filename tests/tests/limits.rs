//! Processes at their limits: address space, memory and process cgroups, a full tmpfs, few descriptors, thousands
//! of connections that come and go. Slower or plain TCP, never wrong: what they print is what they print natively.
//! `SMCR_CHURN_SECS` makes the last one longer.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use smcr_tests::apps::PORT;
use smcr_tests::census::{Census, await_no_names};
use smcr_tests::dice;
use smcr_tests::net::Net;
use smcr_tests::page::Totals;
use smcr_tests::process::{Load, Program, eventually};
use smcr_tests::twice::{self, Case, Ends, compile_with};

const MIB: u64 = 1 << 20;

fn case(program: &str, name: &str) -> Result<Case> {
    let all = twice::cases(program)?;
    all.into_iter().find(|c| c.name == name).context("no such case")
}

fn limit(resource: libc::__rlimit_resource_t, value: u64) -> std::io::Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: a plain system call on a local.
    match unsafe { libc::setrlimit(resource, &limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Both ends have a limit; the transcript is that of `native`.
fn same(case: &Case, native: &str, resource: libc::__rlimit_resource_t, value: u64) -> Result<twice::Outcome> {
    let got = case
        .run_with(Ends::Both, &|p| p.before_exec(move || limit(resource, value)))
        .with_context(|| format!("{} with {value}", case.name))?;
    ensure!(got.transcript == native, "{} with {value}:\n{}\n{}", case.name, got.transcript, got.notes);
    Ok(got)
}

/// The smallest limit in steps of `step` at which the case runs as natively without one.
fn least(case: &Case, native: &str, resource: libc::__rlimit_resource_t, step: u64, ends: Ends) -> Result<u64> {
    for n in 1..200 {
        let value = n * step;
        let got = case.run_with(ends, &|p| p.before_exec(move || limit(resource, value)));
        if got.is_ok_and(|got| got.transcript == native) {
            return Ok(value);
        }
    }
    anyhow::bail!("no limit is large enough for {}", case.name)
}

/// From where the program itself has just enough to where all connections move: the library is not loaded, or has
/// no page, or no region, or no waiter. In between are limits into which the library fits and the next one does
/// not: there the loader refuses to start the program, as for any library.
#[test]
fn address_space() -> Result<()> {
    let case = case("streams", "records")?;
    let native = case.run(Ends::Neither)?.transcript;
    let from = least(&case, &native, libc::RLIMIT_AS, MIB / 2, Ends::Neither)?;
    let (mut moved, mut refused) = (0, Vec::new());
    for value in (0..32).map(|n| from + n * MIB).chain((4..12).map(|n| from + n * 8 * MIB)) {
        let got = case.run_with(Ends::Both, &|p| p.before_exec(move || limit(libc::RLIMIT_AS, value)))?;
        if got.transcript == native {
            moved += u32::from(got.warm.iter().all(|(payload, lo)| lo < payload));
            continue;
        }
        let by_loader = got.notes.contains("error while loading shared libraries");
        ensure!(by_loader, "with {value}:\n{}\n{}", got.transcript, got.notes);
        refused.push((value - from) / MIB);
    }
    println!(
        "{} KiB natively; the loader refuses with so many MiB more: {refused:?}; with {moved} of 40 limits the connection moved",
        from / 1024
    );
    ensure!(refused.len() <= 6, "{refused:?}");
    ensure!((1..40).contains(&moved), "the limits are all too small, or all too large");
    Ok(())
}

/// From where the program has just enough: where it has few, the library makes none; where it has more, each
/// descriptor of the handshake in turn is the first one that is refused.
#[test]
fn descriptors_one_by_one() -> Result<()> {
    for name in ["records", "short"] {
        let case = case("streams", name)?;
        let native = case.run(Ends::Neither)?.transcript;
        let from = least(&case, &native, libc::RLIMIT_NOFILE, 1, Ends::Neither)?;
        for value in from..48 {
            same(&case, &native, libc::RLIMIT_NOFILE, value)?;
        }
    }
    Ok(())
}

/// /dev/shm, /run and /var/tmp are full (as root only: it takes a mount namespace).
#[test]
fn full_file_systems() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        println!("left out: needs root");
        return Ok(());
    }
    let case = case("streams", "records")?;
    let native = case.run(Ends::Neither)?.transcript;
    let line = "for d in /dev/shm /run /var/tmp; do mount -t tmpfs -o size=4k none $d; \
                head -c 8192 /dev/zero >$d/full 2>/dev/null; done; exec \"$0\" \"$@\"";
    let through = ["unshare", "-m", "sh", "-c", line].map(OsStr::new);
    let got = case.run_through(Ends::Both, &through)?;
    ensure!(got.transcript == native, "{}\n{}", got.transcript, got.notes);
    // Memory of the library's kind is not a file of these.
    ensure!(got.warm.iter().all(|(payload, lo)| lo < payload), "it did not move: {:?}", got.warm);
    Ok(())
}

/// A cgroup of this test's own with a limit; None where none can be made.
struct Group(PathBuf);

impl Group {
    fn new(controller: &str, limits: &[(&str, &str, &str)]) -> Option<Group> {
        let name = format!("smcr-test-{}-{controller}", std::process::id());
        for (root, v2) in [(format!("/sys/fs/cgroup/{controller}"), false), ("/sys/fs/cgroup".into(), true)] {
            let dir = PathBuf::from(root).join(&name);
            if std::fs::create_dir(&dir).is_err() {
                continue;
            }
            let group = Group(dir);
            let set = |(old, new, value): &(&str, &str, &str)| {
                std::fs::write(group.0.join(if v2 { new } else { old }), value).is_ok()
            };
            if limits.iter().all(set) {
                return Some(group);
            }
        }
        None
    }

    /// What starts a program in it.
    fn line(&self) -> String {
        format!("echo $$ >{}/cgroup.procs && exec \"$0\" \"$@\"", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was killed is in it for a moment more.
        let _ = eventually("the cgroup is empty", || Ok(std::fs::remove_dir(&self.0).is_ok()));
    }
}

fn in_group(group: &Group, case: &Case) -> Result<()> {
    let native = case.run(Ends::Neither)?.transcript;
    let line = group.line();
    for ends in [Ends::Neither, Ends::Both] {
        let got = case.run_through(ends, &["sh", "-c", &line].map(OsStr::new))?;
        ensure!(got.transcript == native, "{ends:?}: {}\n{}", got.transcript, got.notes);
    }
    Ok(())
}

/// No process and no thread more than the two ends themselves.
#[test]
fn no_more_processes() -> Result<()> {
    let Some(group) = Group::new("pids", &[("pids.max", "pids.max", "2")]) else {
        println!("left out: no cgroup of processes can be made here");
        return Ok(());
    };
    in_group(&group, &case("streams", "records")?)
}

/// Little memory for both ends and all that they share.
#[test]
fn little_memory() -> Result<()> {
    let few = [("memory.limit_in_bytes", "memory.max", "12582912")];
    let Some(group) = Group::new("memory", &few) else {
        println!("left out: no cgroup of memory can be made here");
        return Ok(());
    };
    in_group(&group, &case("streams", "records")?)?;
    in_group(&group, &case("streams", "many")?)
}

fn churn(load: Load, connections: u32, secs: u32) -> Result<()> {
    let net = Net::new()?;
    let program = compile_with("cc", "churn", &["churn.c"], &["-O1", "-g", "-pthread"])?;
    let seed = dice::seed();
    let port = PORT.to_string();
    let server = Program::new(&net, load, &program).args(["serve", &port]).start()?;
    net.wait_listen(PORT)?;
    let call = |connections: u32, secs: u32| -> Result<String> {
        let line = [port.clone(), connections.to_string(), secs.to_string(), seed.to_string()];
        let caller = Program::new(&net, load, &program).args(["call"]).args(line).start()?;
        let ended = caller.wait(std::time::Duration::from_secs(u64::from(secs) + 120))?;
        ensure!(ended.status.success(), "seed {seed}: {ended}");
        Ok(ended.out)
    };
    // Once for all that is made when it is first needed, and the memory that such a crowd takes.
    call(connections, 2.max(secs / 8))?;
    let before = Census::of(server.pid())?;
    let moved = Totals::of(server.pid())?;
    let said = call(connections, secs)?;
    let moved = Totals::of(server.pid())?.since(moved);
    let mut leaks = Vec::new();
    for _ in 0..10 {
        call(4, 1)?;
        leaks = Census::of(server.pid())?.leaked_since(&before, 3, 2048);
        if leaks.is_empty() {
            break;
        }
    }
    println!("{load:?}, {connections} connections, {secs} s, seed {seed}: {}", said.trim());
    match load {
        Load::Native => moved.ensure_on_tcp("natively")?,
        Load::Library => moved.ensure_in_memory("clients that come and go", u64::from(connections) / 20, 100_000)?,
    }
    println!("server before {before:?}\nserver after  {:?}", Census::of(server.pid())?);
    ensure!(leaks.is_empty(), "the server leaks: {leaks:?}");
    drop(server);
    await_no_names(&net)
}

#[test]
fn thousands_come_and_go() -> Result<()> {
    let secs = std::env::var("SMCR_CHURN_SECS").ok().and_then(|s| s.parse().ok());
    let connections = if secs.is_some() { 10_000 } else { 2_000 };
    for load in Load::BOTH {
        churn(load, connections, secs.unwrap_or(4))?;
    }
    Ok(())
}
