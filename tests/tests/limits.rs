//! Processes at their limits: address space, memory and process cgroups, a full tmpfs, few descriptors and numbers beyond
//! all tables, more sockets than a family has records, thousands of connections that come and go. Slower or plain TCP, never wrong: what they print is what they print natively.
//! `SMCR_CHURN_SECS` makes the last one longer.

mod hostile_common;
mod limits_groups;

use std::ffi::OsStr;

use anyhow::{Context, Result, ensure};
use hostile_common::{connections, server};
use smcr_tests::apps::PORT;
use smcr_tests::census::{Census, System, await_no_names};
use smcr_tests::dice;
use smcr_tests::net::Net;
use smcr_tests::page::Totals;
use smcr_tests::process::{DEADLINE, Load, Program, eventually, flipping};
use smcr_tests::slow;
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
    let got = case.run_with(Ends::Both, &|p| p.before_exec(move || limit(resource, value))).with_context(|| format!("{} with {value}", case.name))?;
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
    let values = (0..32).chain((4..16).map(|n| n * 8)).map(|n| from + n * MIB).collect::<Vec<_>>();
    for value in &values {
        let value = *value;
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
        "{} KiB natively; the loader refuses with so many MiB more: {refused:?}; with {moved} of {} limits the connection moved",
        from / 1024,
        values.len()
    );
    ensure!(refused.len() <= 6, "{refused:?}");
    ensure!((1..values.len() as u32).contains(&moved), "the limits are all too small, or all too large");
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
            let got = same(&case, &native, libc::RLIMIT_NOFILE, value)?;
            if value == 47 && !case.cold {
                ensure_moved(&got).context("with 47 descriptors")?;
            }
        }
    }
    Ok(())
}

/// Less than the payload of each warm-up crossed `lo`.
fn ensure_moved(got: &twice::Outcome) -> Result<()> {
    ensure!(!got.warm.is_empty(), "no warm-up");
    let moved = got.warm.iter().all(|(payload, lo)| lo < payload);
    ensure!(moved || flipping(), "{}it did not move: {:?}", slow::MARK, got.warm);
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
    ensure_moved(&got)
}

fn churn(load: Load, connections: u32, secs: u32) -> Result<()> {
    let (net, system) = (Net::new()?, System::now());
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
        _ => moved.ensure_in_memory("clients that come and go", u64::from(connections) / 20, 100_000)?,
    }
    println!("server before {before:?}\nserver after  {:?}", Census::of(server.pid())?);
    ensure!(leaks.is_empty(), "the server leaks: {leaks:?}");
    drop(server);
    await_no_names(&net)?;
    system.ensure_same()
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

/// RLIMIT_NOFILE of a container.
const HUGE: u64 = 1_073_741_816;

/// fs.nr_open, raised to [`HUGE`] until this goes. It is the whole system's, and no limit of a process follows it by itself.
struct NrOpen(Option<String>);

impl NrOpen {
    const FILE: &str = "/proc/sys/fs/nr_open";

    /// Raises it where this is permitted; and what it is now.
    fn raise() -> Result<(NrOpen, u64)> {
        let was = std::fs::read_to_string(NrOpen::FILE)?;
        let now: u64 = was.trim().parse()?;
        if now >= HUGE || std::fs::write(NrOpen::FILE, HUGE.to_string()).is_err() {
            return Ok((NrOpen(None), now));
        }
        Ok((NrOpen(Some(was)), HUGE))
    }
}

impl Drop for NrOpen {
    fn drop(&mut self) {
        if let Some(was) = &self.0 {
            let _ = std::fs::write(NrOpen::FILE, was);
        }
    }
}

/// RLIMIT_NOFILE at a container's usual 1,073,741,816, or at the most that this system permits: no table of that size,
/// and everything as usual. A number beyond the library's table has no place there, and stays on TCP.
#[test]
fn huge_descriptor_limit() -> Result<()> {
    let (_raised, most) = NrOpen::raise()?;
    let mut huge = HUGE.min(most);
    let net = Net::new()?;
    let attempt = Program::new(&net, Load::Native, "true").before_exec(move || limit(libc::RLIMIT_NOFILE, huge)).start();
    if attempt.is_err() {
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a plain system call on a local.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut now) };
        huge = now.rlim_max;
        println!("no more than {huge} descriptors are permitted here");
    }
    case("stdio", "lines")?.check_with(&|p| p.before_exec(move || limit(libc::RLIMIT_NOFILE, huge)))?;
    // What a program without sockets has mapped: little more than without the library, and no more than with a small limit.
    let (mut sizes, mut spaces) = (Vec::new(), Vec::new());
    for (load, most) in [(Load::Native, huge), (Load::Library, huge), (Load::Library, 1024)] {
        let status = Program::new(&net, load, "cat").args(["/proc/self/status"]).before_exec(move || limit(libc::RLIMIT_NOFILE, most)).run_ok()?;
        let size = |name: &str| -> Result<u64> {
            let line = status.lines().find(|l| l.starts_with(name)).context("status")?;
            Ok(line.split_whitespace().nth(1).context("status")?.parse()?)
        };
        sizes.push(size("VmRSS:")?);
        spaces.push(size("VmSize:")?);
    }
    println!("a limit of {huge}; KiB without, with, with a limit of 1024: resident {sizes:?}, mapped {spaces:?}");
    ensure!(sizes[1] < sizes[0] + 4096, "resident KiB without and with: {sizes:?}");
    // Without sockets it maps its own file and what is zero in it. A table of one pointer for each number had 8 GiB.
    ensure!(spaces[1].abs_diff(spaces[2]) < 1024 && spaces[1] < spaces[0] + 64 * 1024, "mapped KiB: {spaces:?}");
    if huge > TABLE { beyond_the_table(&net, huge) } else { Ok(()) }
}

/// Descriptors that the library has places for (`table::CAP`).
const TABLE: u64 = 1 << 20;

/// A connection in memory gets a second number beyond the table, by each call that gives one: through both numbers in turns the
/// program sends and receives the same bytes. One that has no other number is plain TCP.
fn beyond_the_table(net: &Net, most: u64) -> Result<()> {
    const SCRIPT: &str = "
import fcntl, os, socket, sys
def talk(*numbers):
    for i in range(200):
        b = bytes((i + k) & 255 for k in range(1000)); g = b''
        w, r = numbers[i % len(numbers)], numbers[i // 2 % len(numbers)]
        n = 0
        while n < len(b): n += os.write(w, b[n:])
        while len(g) < len(b):
            more = os.read(r, len(b) - len(g))
            assert more, 'the end'
            g += more
        assert g == b, i
for how in 'dup2', 'dupfd', 'alone':
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    talk(s.fileno())
    high = 1048576 + 5
    if how == 'dupfd': high = fcntl.fcntl(s.fileno(), fcntl.F_DUPFD, high)
    else: os.dup2(s.fileno(), high)
    if how == 'alone': s.close(); talk(high)
    else: talk(s.fileno(), high); talk(high)
    print(how, flush=True); sys.stdin.readline()
    os.close(high)
    if how != 'alone': talk(s.fileno()); s.close()
";
    let server = server(net, Load::Library, "epoll", &[])?;
    let (from, to) = std::io::pipe()?;
    let mut to = Some(to);
    let mut client = Program::new(net, Load::Library, twice::python()?)
        .args(["-c", SCRIPT, &PORT.to_string()])
        .before_exec(move || limit(libc::RLIMIT_NOFILE, most))
        .stdin(from)
        .start()?;
    for how in ["dup2", "dupfd", "alone"] {
        eventually(how, || {
            ensure!(!client.gone()?, "{how}: {:?}", client.so_far());
            Ok(client.so_far().0.contains(how))
        })?;
        let all = connections(client.pid())?;
        let why: Vec<_> = all.iter().filter(|c| c["role"] == "client").map(|c| &c["reason"]["name"]).collect();
        println!("{how}: {why:?}");
        ensure!(how == "alone" || why == ["fd-too-high"], "{how}: {all:?}");
        std::io::Write::write_all(to.as_mut().context("pipe")?, b"\n")?;
    }
    drop(to.take());
    let ended = client.wait(DEADLINE)?;
    ensure!(ended.status.success(), "{ended}");
    server.stop().map(drop)
}

/// A process with a socket in each record of its family: the next connection is plain TCP, and when there is room again the next one
/// moves.
#[test]
fn more_sockets_than_records() -> Result<()> {
    const SCRIPT: &str = "
import socket, sys
def talk():
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    for i in range(500):
        b = bytes((i + k) & 255 for k in range(4000)); g = b''
        s.sendall(b)
        while len(g) < len(b): g += s.recv(len(b) - len(g))
        assert g == b, i
    s.close()
def say(what): print(what, flush=True); sys.stdin.readline()
held = [socket.socket() for _ in range(65536)]
say('full'); talk(); say('talked')
held.clear()
say('room'); talk(); say('again')
";
    const BYTES: u64 = 2 * 500 * 4000;
    const DESCRIPTORS: u64 = 70_000;
    let net = Net::new()?;
    if Program::new(&net, Load::Native, "true").before_exec(|| limit(libc::RLIMIT_NOFILE, DESCRIPTORS)).start().is_err() {
        println!("left out: {DESCRIPTORS} descriptors are not permitted here");
        return Ok(());
    }
    let _server = server(&net, Load::Library, "epoll", &[])?;
    let (from, mut to) = std::io::pipe()?;
    let mut client = Program::new(&net, Load::Library, twice::python()?)
        .args(["-c", SCRIPT, &PORT.to_string()])
        .before_exec(|| limit(libc::RLIMIT_NOFILE, DESCRIPTORS))
        .stdin(from)
        .start()?;
    let mut crossed = Vec::new();
    for word in ["full", "talked", "room", "again"] {
        eventually(word, || {
            ensure!(!client.gone()?, "{word}: {:?}", client.so_far());
            Ok(client.so_far().0.contains(word))
        })?;
        crossed.push(net.lo()?.bytes);
        std::io::Write::write_all(&mut to, b"\n")?;
    }
    let ended = client.wait(DEADLINE)?;
    ensure!(ended.status.success(), "{ended}");
    let (full, room) = (crossed[1] - crossed[0], crossed[3] - crossed[2]);
    println!("bytes on lo of {BYTES}: {full} without a record, {room} with one");
    ensure!(full >= BYTES && (room < BYTES / 5 || flipping()), "bytes on lo of {BYTES}: {full}, {room}");
    Ok(())
}
