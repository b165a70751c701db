//! Loading the library is harmless: where the system lacks what it uses, where limits are odd,
//! where the program is not one that it can help, everything goes on as without it.

mod hostile_common;

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use hostile_common::{Talker, connections, server, server_through};
use smcr_tests::apps::PORT;
use smcr_tests::census::Census;
use smcr_tests::library;
use smcr_tests::net::Net;
use smcr_tests::process::{DEADLINE, Load, Program, eventually, flipping, which};
use smcr_tests::share::{Share, measure};
use smcr_tests::twice::{self, Case, Ends, compile_with};

/// A case by its program and name.
fn case(program: &str, name: &str) -> Result<Case> {
    twice::cases(program)?.into_iter().find(|c| c.name == name).context("no such case")
}

fn limit(resource: libc::__rlimit_resource_t, value: u64) -> std::io::Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: a plain system call on a local.
    match unsafe { libc::setrlimit(resource, &limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Not root's programs either, which may lock what they like, whatever the limit.
fn may_not_lock() -> std::io::Result<()> {
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    limit(libc::RLIMIT_MEMLOCK, 0)?;
    // SAFETY: prctl(2) without pointers.
    match unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// As many descriptors as connections and 16 more.
#[test]
fn tight_descriptor_limit() -> Result<()> {
    case("streams", "many")?.check_with(&|p| p.before_exec(|| limit(libc::RLIMIT_NOFILE, 24 + 16)))
}

#[test]
fn no_locked_memory() -> Result<()> {
    case("streams", "wander")?.check_with(&|p| p.before_exec(may_not_lock))?;
    // It binds.
    let net = Net::new()?;
    let lock =
        "import ctypes; l = ctypes.CDLL(None, use_errno=True); b = ctypes.create_string_buffer(10000); print(l.mlock(b, 10000), ctypes.get_errno())";
    let program = Program::new(&net, Load::Library, twice::python()?).args(["-c", lock]).before_exec(may_not_lock);
    let said = program.run_ok()?;
    ensure!(said == format!("-1 {}\n", libc::EPERM), "{said}");
    Ok(())
}

/// Descriptors 0 to 2 are closed at the start: the program's socket is 0, and nothing of the
/// library's may be where it thinks it is writing an error. A connection there stays on TCP (docs/interpose.md), and
/// that is why.
#[test]
fn standard_descriptors_closed() -> Result<()> {
    fn without(p: Program<'_>) -> Program<'_> {
        p.env("CASE_FDS", "20 21").before_exec(|| {
            // SAFETY: plain system calls.
            unsafe {
                libc::dup2(1, 20);
                libc::dup2(2, 21);
                libc::close(0);
                libc::close(1);
                libc::close(2);
            }
            Ok(())
        })
    }
    for name in ["wander", "records"] {
        let mut low = case("streams", name)?;
        (low.cold, low.whole) = (true, false);
        low.check_with(&|p| without(p))?;
        let dir = tempfile::TempDir::new()?;
        let log = dir.path().join("log");
        let got = low.run_with(Ends::Both, &|p| without(p).env("SMCR_LOG", "smcr::reason=debug").env("SMCR_LOG_FILE", &log))?;
        let said = std::fs::read_to_string(&log)?;
        let ends: HashSet<_> = said.lines().filter_map(|l| l.split(' ').next()).collect();
        ensure!(ends.len() == 2 && said.lines().all(|l| l.ends_with("reason=\"stdio\"")), "{name}: {said}");
        ensure!(got.payload > 1_000_000 && got.lo.bytes >= got.payload, "{name}: {:?} for {} bytes", got.lo, got.payload);
    }
    Ok(())
}

/// Systems without one of the things that acceleration stands on: plain TCP, the same results.
#[test]
fn something_is_missing() -> Result<()> {
    let deny = compile_with("cc", "deny", &["deny.c"], &["-O1"])?;
    for what in ["memfd", "netlink", "unix", "eventfd", "mapping"] {
        for name in ["records", "short"] {
            let case = case("streams", name)?;
            let native = case.run(Ends::Neither)?;
            case.ensure_sound(&native)?;
            for ends in [Ends::Both, Ends::ListenerOnly, Ends::ConnectorOnly] {
                let got = case.run_through(ends, &[deny.as_os_str(), what.as_ref()]).with_context(|| format!("without {what}, {name}, {ends:?}"))?;
                ensure!(got.transcript == native.transcript, "without {what}, {name}, {ends:?}:\n{}\n{}", got.transcript, got.notes);
            }
        }
    }
    Ok(())
}

/// What one end says of its connection: a reason, accelerated ("-"), or nothing: it has no page.
type Says = Option<&'static str>;

/// Who lacks what (server, client), and what the two say then.
const MISSING: [(&str, [bool; 2], [Says; 2]); 18] = [
    ("memfd", [true, false], [None, Some("peer-plain")]),
    ("memfd", [false, true], [Some("peer-plain"), None]),
    ("memfd", [true, true], [None, None]),
    ("mapping", [true, false], [None, Some("peer-plain")]),
    ("mapping", [false, true], [Some("peer-plain"), None]),
    ("mapping", [true, true], [None, None]),
    ("descriptors", [true, false], [None, Some("peer-plain")]),
    ("descriptors", [false, true], [Some("peer-plain"), None]),
    ("descriptors", [true, true], [None, None]),
    ("unix", [true, false], [Some("resources"), Some("peer-plain")]),
    ("unix", [false, true], [Some("peer-plain"), Some("resources")]),
    ("unix", [true, true], [Some("resources"), Some("peer-plain")]),
    // The connecting side alone asks; the other one has said that it is there, and nobody has come.
    ("netlink", [true, false], [Some("-"), Some("-")]),
    ("netlink", [false, true], [Some("peer-plain"), Some("no-diag")]),
    ("netlink", [true, true], [Some("peer-plain"), Some("no-diag")]),
    // The doorbells are bytes then.
    ("eventfd", [true, false], [Some("-"), Some("-")]),
    ("eventfd", [false, true], [Some("-"), Some("-")]),
    ("eventfd", [true, true], [Some("-"), Some("-")]),
];

/// There the ends say why they are on TCP, as far as they have a page to say it in, and the payload is seen there.
#[test]
fn something_is_missing_and_that_is_said() -> Result<()> {
    for (what, lacks, wanted) in MISSING {
        let how = || format!("without {what} (server, client): {lacks:?}");
        missing(what, lacks, wanted).with_context(how)?;
    }
    Ok(())
}

fn missing(what: &str, lacks: [bool; 2], wanted: [Says; 2]) -> Result<()> {
    let deny = compile_with("cc", "deny", &["deny.c"], &["-O1"])?;
    let deny = [deny.to_str().context("path")?, what];
    let few = ["sh", "-c", "ulimit -n 20; exec \"$0\" \"$@\""];
    let lacking: &[&str] = if what == "descriptors" { &few } else { &deny };
    let before = lacks.map(|lacks| [&["env", "SMCR_LOG=smcr::family=warn"][..], if lacks { lacking } else { &[] }].concat());
    let net = Net::new()?;
    let server = server_through(&net, Load::Library, &before[0], "epoll")?;
    let mut client = Talker::start_through(&net, Load::Library, &before[1], &["127.0.0.1", &PORT.to_string()])?;
    let says = |pid: i32, role: &str| -> Result<Option<String>> {
        let one = connections(pid)?.into_iter().find(|c| c["role"] == role);
        one.map(|c| Ok(c["reason"]["name"].as_str().context("reason")?.to_owned())).transpose()
    };
    let is_memory = wanted[0] == Some("-");
    let mut seen = [None, None];
    eventually("what they say", || {
        client.exchange(20_000)?;
        seen = [says(server.pid(), "server")?, says(client.pid(), "client")?];
        Ok([0, 1].iter().all(|i| seen[*i].as_deref() == wanted[*i]) || is_memory && flipping())
    })
    .with_context(|| format!("{seen:?}"))?;
    let share = measure(&net, || client.exchange(1_000_000).map(|()| 2_000_000))?;
    if is_memory {
        share.ensure_off_tcp("what is not missed")?
    } else {
        share.ensure_on_tcp("what is missed")?
    }
    // Who has no page has the log to say it in, once, or says that there is none.
    let told = if what == "descriptors" { "nothing is told" } else { "no page for this process" };
    for (said, wanted) in [(server.so_far().1, wanted[0]), (client.so_far().1, wanted[1])] {
        let lines: Vec<_> = said.lines().collect();
        ensure!(lines.len() == usize::from(wanted.is_none()) && lines.iter().all(|l| l.contains(told)), "{said}");
    }
    client.end()
}

/// No /dev/shm (as root only: it takes a mount namespace).
#[test]
fn no_dev_shm() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        println!("left out: needs root");
        return Ok(());
    }
    let case = case("streams", "records")?;
    let native = case.run(Ends::Neither)?;
    let line = "umount -l /dev/shm 2>/dev/null; mount -t tmpfs -o ro none /dev/shm; exec \"$0\" \"$@\"";
    let through = ["unshare", "-m", "sh", "-c", line].map(std::ffi::OsStr::new);
    let got = case.run_through(Ends::Both, &through)?;
    ensure!(got.transcript == native.transcript, "{}", got.transcript);
    // Memory has no name there: nothing is missing.
    if flipping() { Ok(()) } else { case.ensure_accelerated(&got) }
}

/// One transfer between two builds of `plain`, with LD_PRELOAD set for both.
fn transfer(server: &std::path::Path, client: &std::path::Path, before: &[&str]) -> Result<Share> {
    let net = Net::new()?;
    let port = PORT.to_string();
    let start = |program: &std::path::Path, role: &str| {
        let mut line: Vec<&std::ffi::OsStr> = before.iter().map(|s| s.as_ref()).collect();
        line.push(program.as_os_str());
        Program::new(&net, Load::Library, line[0]).args(&line[1..]).args([role, port.as_str()]).start()
    };
    measure(&net, || {
        let server = start(server, "server")?;
        net.wait_listen(PORT).with_context(|| format!("{:?}", server.so_far()))?;
        let client = start(client, "client")?.wait(DEADLINE)?;
        ensure!(client.status.success() && client.out == "whole\n", "{client}");
        let server = server.wait(DEADLINE)?;
        ensure!(server.status.success(), "{server}");
        Ok(8_000_000)
    })
}

/// Static, musl-static and setuid programs on one or both ends are untouched: plain TCP.
#[test]
fn programs_that_it_cannot_help() -> Result<()> {
    let dynamic = compile_with("cc", "plain", &["plain.c"], &["-O1"])?;
    transfer(&dynamic, &dynamic, &[])?.ensure_off_tcp("the dynamic one")?;

    let fixed = compile_with("cc", "plain-static", &["plain.c"], &["-O1", "-static"])?;
    which("musl-gcc")?;
    let musl = compile_with("musl-gcc", "plain-musl", &["plain.c"], &["-O1", "-static"])?;
    for other in [&fixed, &musl] {
        for (server, client) in [(other, other), (other, &dynamic), (&dynamic, other)] {
            transfer(server, client, &[])?.ensure_on_tcp(&other.display().to_string())?;
        }
    }
    Ok(())
}

/// A setuid program runs without the library (AT_SECURE), and its peers notice nothing.
#[test]
fn setuid_programs() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        println!("left out: needs root");
        return Ok(());
    }
    let plain = compile_with("cc", "plain-setuid", &["plain.c"], &["-O1"])?;
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o4755))?;
    let as_user = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"];
    transfer(&plain, &plain, &as_user)?.ensure_on_tcp("setuid")
}

/// /etc/ld.so.preload loads the library into setuid programs too (AT_SECURE). There it does nothing: no page, no descriptor, TCP. The
/// same program without the bit is accelerated.
#[test]
fn loaded_into_a_setuid_program() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        println!("left out: needs root");
        return Ok(());
    }
    // Instead of /etc, in a mount namespace of the client's.
    let etc = tempfile::TempDir::new()?;
    std::fs::set_permissions(etc.path(), std::fs::Permissions::from_mode(0o755))?;
    for name in ["ld.so.cache", "passwd", "group"] {
        let _ = std::fs::copy(format!("/etc/{name}"), etc.path().join(name));
    }
    std::fs::write(etc.path().join("ld.so.preload"), format!("{}\n", library::path().display()))?;
    let etc = etc.path().to_str().context("path")?;
    let in_etc = ["unshare", "-m", "sh", "-c", "mount --bind \"$0\" /etc && exec \"$@\"", etc];
    let as_user = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"];

    let net = Net::new()?;
    let _server = server(&net, Load::Library, "epoll", &[])?;
    let talker = |name: &str, mode: u32, before: &[&str]| -> Result<Talker> {
        let program = compile_with("cc", name, &["talker.c"], &["-O1", "-g", "-pthread"])?;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode))?;
        let port = PORT.to_string();
        let line = [before, &as_user, &[program.to_str().context("path")?, "127.0.0.1", &port]].concat();
        Talker::start_line(&net, Load::Native, &line)
    };
    let maps = |t: &Talker| std::fs::read_to_string(format!("/proc/{}/maps", t.pid()));
    // The files that it has by name are those of its output.
    let held = |t: &Talker| -> Result<Vec<(String, usize)>> {
        Ok(Census::of(t.pid())?.fds.into_iter().filter(|(kind, _)| !kind.starts_with('/')).collect())
    };
    let is_loaded = |maps: &str| maps.contains(&library::path().display().to_string());

    let mut native = talker("talker-setuid", 0o4755, &[])?;
    native.exchange(1_000_000)?;
    ensure!(!is_loaded(&maps(&native)?));
    let expected = held(&native)?;

    let mut usual = talker("talker-usual", 0o755, &in_etc)?;
    usual.ensure_accelerated()?;
    ensure!(is_loaded(&maps(&usual)?) && maps(&usual)?.contains("memfd:smcr"));

    let mut inert = talker("talker-setuid", 0o4755, &in_etc)?;
    inert.exchange(20_000)?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", inert.pid()))?;
    ensure!(status.contains("Uid:\t12345\t0\t0\t0"), "no setuid program: {status}");
    let before = net.lo()?;
    inert.exchange(1_000_000)?;
    let bytes = (net.lo()? - before).bytes;
    let maps = maps(&inert)?;
    ensure!(is_loaded(&maps), "not loaded: {maps}");
    ensure!(!maps.contains("memfd:smcr"), "{maps}");
    ensure!(bytes >= 2_000_000, "{bytes} bytes on lo");
    let fds = held(&inert)?;
    ensure!(fds == expected, "{fds:?}, natively {expected:?}");
    ensure!(connections(inert.pid())?.is_empty());
    inert.end()?;
    usual.end()?;
    native.end()
}

/// Go programs make their own system calls.
#[test]
fn go_programs() -> Result<()> {
    let Ok(go) = which("go") else {
        println!("left out: go is not installed");
        return Ok(());
    };
    let net = Net::new()?;
    let program = smcr_tests::library::work_dir().join("plain-go");
    let built =
        Command::new(go).current_dir(smcr_tests::library::source_dir().join("go")).args(["build", "-o"]).arg(&program).arg("plain.go").output()?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    drop(net);
    let dynamic = compile_with("cc", "plain-for-go", &["plain.c"], &["-O1"])?;
    for (server, client) in [(&program, &program), (&program, &dynamic), (&dynamic, &program)] {
        transfer(server, client, &[])?.ensure_on_tcp(&format!("{} to {}", client.display(), server.display()))?;
    }
    Ok(())
}

/// A program that opens no socket has no descriptor, thread or mapping file of the library's.
#[test]
fn no_socket_no_trace() -> Result<()> {
    let net = Net::new()?;
    let mut seen = Vec::new();
    for load in Load::BOTH {
        seen.push(Program::new(&net, load, "ls").args(["/proc/self/fd"]).run_ok()?);
        seen.push(Program::new(&net, load, "sh").args(["-c", "grep Threads /proc/self/status"]).run_ok()?);
        seen.push(Program::new(&net, load, "sh").args(["-c", "grep -c memfd /proc/self/maps; true"]).run_ok()?);
    }
    ensure!(seen[..3] == seen[3..], "{seen:?}");
    Ok(())
}

/// Nothing stays behind in /dev/shm when both ends are killed.
#[test]
fn nothing_stays_behind() -> Result<()> {
    let left = || -> Result<Vec<String>> {
        let mut names = Vec::new();
        for dir in ["/dev/shm", "/run", "/var/tmp"] {
            let Ok(entries) = std::fs::read_dir(dir) else {
                continue;
            };
            names.extend(entries.flatten().map(|e| e.path().display().to_string()));
        }
        names.push(std::env::temp_dir().display().to_string());
        Ok(names.into_iter().filter(|n| n.contains("smcr")).collect())
    };
    let before = left()?;
    let case = case("idle", "recv")?;
    let net = Net::new()?;
    let (a, b) = std::os::unix::net::UnixStream::pair()?;
    let mut both = Vec::new();
    for (side, ctl) in [("a", a), ("b", b)] {
        both.push(Program::new(&net, Load::Library, &case.program).args([case.name.as_str(), side]).fd(ctl.into(), 3).start()?);
    }
    for program in &both {
        eventually("idle", || Ok(program.so_far().0.contains("idle")))?;
        program.signal(nix::sys::signal::Signal::SIGKILL)?;
    }
    for program in both {
        program.wait(DEADLINE)?;
    }
    ensure!(left()? == before, "{:?}, before {before:?}", left()?);
    Ok(())
}
