//! Cases and programs under valgrind's memcheck, and built with sanitizers, with the library at both ends: no access to memory that is not there,
//! no decision by a value that nobody wrote, no system call with either. What was accelerated is measured as everywhere.
//!
//! valgrind sees the library's own system calls and its copies; of what it maps itself it knows only whether it is mapped.
//! It can't start a porter (`sys/porter.rs`: a general clone), so both ends are the same user. Helgrind and DRD see one
//! process, and no fence: to them every ring is a race. The orderings are for the models.
//! `cargo test --test memcheck -- epoll` runs what has "epoll" in its name.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use smcr_tests::apps::{LONG, Nginx, PORT, Redis, noise};
use smcr_tests::library::source_dir;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program, which};
use smcr_tests::share::measure;
use smcr_tests::twice::{self, Case, Ends, compile_with};
use tempfile::TempDir;

/// One or two of each way to wait, to write, to share and to leave. None gives the kernel a bad pointer on purpose, and
/// none asks for a time that valgrind does not keep.
const CASES: &[&str] = &[
    "streams::wander",
    "epoll::level",
    "epoll::edge",
    "epoll_wakes::one_set",
    "polling::poll",
    "vectors::messages",
    "amounts::part_of_many",
    "splices::relay",
    "splices::empty",
    "splices::into_pipe",
    "threads::duplex",
    "threads::many_readers",
    "children::both_use",
    "children::killed_child",
    "handover::pass",
    "handover::exec_with",
    "handover::fork_exec_cat",
    "fds::dup2_over",
    "signals::longjmp",
    "waits::cancel",
    "close::unread",
    "close::linger_zero_data",
    "death::killed_unread",
    "rawwait::edge",
    "stdio::bulk",
    "starts::fast_watched",
    "echo::blocking",
];

/// What valgrind says of its own limits, and no error.
const NOTICES: &[&str] = &[
    // SIOCOUTQNSD: it does not know how many bytes the kernel writes there.
    "Warning: noted but unhandled ioctl 0x894b with no size/direction hints.",
    "This could cause spurious value errors to appear.",
    "See README_MISSING_SYSCALL_OR_IOCTL for guidance on writing a proper wrapper.",
    // sys/probe.rs asks with a change that there is not.
    "sigprocmask: unknown 'how' field 99",
];

/// A directory with a log for each process that ran under valgrind.
struct Logs(TempDir);

impl Logs {
    fn new() -> Result<Logs> {
        Ok(Logs(TempDir::new()?))
    }

    /// The command line up to the program.
    fn valgrind(&self) -> Result<Vec<String>> {
        let valgrind = which("valgrind")?;
        let suppressions = source_dir().join("memcheck.supp");
        let log = self.0.path().join("%p.%n");
        Ok(vec![
            valgrind.display().to_string(),
            "--quiet".into(),
            "--vgdb=no".into(),
            "--trace-children=yes".into(),
            "--num-callers=25".into(),
            format!("--suppressions={}", suppressions.display()),
            format!("--log-file={}", log.display()),
        ])
    }

    /// What valgrind said, its notices left out, and of how many processes.
    fn read(&self) -> Result<(String, usize)> {
        let (mut text, mut processes) = (String::new(), 0);
        for entry in fs::read_dir(self.0.path())? {
            processes += 1;
            let log = fs::read(entry?.path())?;
            for line in String::from_utf8_lossy(&log).lines() {
                // "==PID== what", "--PID-- what".
                let said = line.split_once(' ').map_or("", |(_, said)| said.trim());
                if !said.is_empty() && !NOTICES.contains(&said) {
                    text += line;
                    text += "\n";
                }
            }
        }
        Ok((text, processes))
    }

    fn ensure_clean(&self, least: usize) -> Result<()> {
        let (text, processes) = self.read()?;
        ensure!(text.is_empty(), "{text}");
        ensure!(processes >= least, "{processes} processes ran under valgrind");
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for name in CASES {
        let case = case(name)?;
        trials.push(trial(name, move || check(&case)));
    }
    for (name, reported) in [("into_freed", "Invalid write"), ("from_beyond", "Invalid read")] {
        let case = case(&format!("mistakes::{name}"))?;
        trials.push(trial(&format!("mistakes::{name}"), move || is_found(&case, reported)));
    }
    for (name, runtime) in [("address", "-static-libasan"), ("thread", "-static-libtsan")] {
        trials.push(trial(&format!("sanitizers::{name}"), move || sanitized(name, runtime)));
    }
    trials.push(trial("programs::redis", redis));
    trials.push(trial("programs::nginx", nginx));
    libtest_mimic::run(&arguments, trials).exit()
}

fn trial(name: &str, test: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name.to_string(), move || test().map_err(|e| Failed::from(format!("{e:#}"))))
}

fn case(name: &str) -> Result<Case> {
    let (program, _) = name.split_once("::").context("PROGRAM::CASE")?;
    let all = if program == "echo" { twice::python_cases("echo.py")? } else { twice::cases(program)? };
    let found = all.into_iter().find(|case| case.is_called(name));
    let case = found.with_context(|| format!("{name} is no case"))?;
    // Under valgrind everything is slow, and a reader that is too slow for memory goes to TCP: the warm-up is measured.
    Ok(Case { switches: false, slow: true, whole: false, ..case })
}

fn run(case: &Case, logs: &Logs) -> Result<twice::Outcome> {
    let before = logs.valgrind()?;
    let before: Vec<_> = before.iter().map(OsStr::new).collect();
    let got = case.run_through(Ends::Both, &before)?;
    case.ensure_accelerated(&got)?;
    Ok(got)
}

fn check(case: &Case) -> Result<()> {
    let logs = Logs::new()?;
    let native = case.run(Ends::Neither)?;
    case.ensure_sound(&native)?;
    let got = run(case, &logs)?;
    logs.ensure_clean(2)?;
    ensure!(got.transcript == native.transcript, "{}\n{}", got.transcript, got.notes);
    Ok(())
}

/// The check itself can fail: a mistake of the program's is seen where the library makes the access, or the kernel while connections
/// move to and fro.
fn is_found(case: &Case, what: &str) -> Result<()> {
    let logs = Logs::new()?;
    run(case, &logs)?;
    let (text, _) = logs.read()?;
    let by_kernel = std::env::var_os("SMCR_FLIP").is_some() && text.contains("points to unaddressable byte");
    ensure!(by_kernel || text.contains(what), "not found: {what}\n{text}");
    Ok(())
}

/// Programs that were built with a sanitizer, whose own functions stand before the library's and are not ready before the program is.
fn sanitized(name: &str, runtime: &str) -> Result<()> {
    let options = ["-O1", "-g", "-pthread", &format!("-fsanitize={name}"), runtime];
    for (source, of_it) in [("threads", "threads::duplex"), ("amounts", "amounts::wait_for_all")] {
        let files = [&format!("{source}.c"), "case.c", "bytes.c"];
        let program = compile_with("cc", &format!("{source}_{name}"), &files, &options)?;
        let case = Case { program, ..case(of_it)? };
        let native = case.run(Ends::Neither)?;
        case.ensure_sound(&native)?;
        let got = case.run(Ends::Both)?;
        case.ensure_accelerated(&got)?;
        ensure!(got.transcript == native.transcript, "{}\n{}", got.transcript, got.notes);
    }
    Ok(())
}

/// A server and a benchmark, both under valgrind; 95 % of what the server counted left TCP.
fn redis() -> Result<()> {
    let (logs, net) = (Logs::new()?, Net::new()?);
    let before = logs.valgrind()?;
    let line: Vec<&str> = before.iter().map(String::as_str).collect();
    let redis = Redis::start_with(&net, Load::Library, &line)?;
    let share = measure(&net, || {
        let counted = redis.payload()?;
        let benchmark = which("redis-benchmark")?;
        let ended = Program::new(&net, Load::Library, line[0])
            .args(&line[1..])
            .args([benchmark.as_os_str()])
            .args(["-p", &PORT.to_string(), "--csv", "-c", "4", "-n", "1500", "-d", "4000", "-t", "set,get"])
            .start()?
            .wait(LONG)?;
        ensure!(ended.status.success() && ended.out.lines().count() >= 2, "{ended}");
        Ok(redis.payload()? - counted)
    })?;
    share.ensure_off_tcp("redis under valgrind")?;
    let value = noise(3, 300_000);
    redis.set("v", &value)?;
    ensure!(redis.get("v")? == value, "another value came back");
    redis.stop()?;
    logs.ensure_clean(2)
}

/// nginx with a worker, and curl with 100 files over one connection.
fn nginx() -> Result<()> {
    let (logs, net) = (Logs::new()?, Net::new()?);
    let before = logs.valgrind()?;
    let nginx = Nginx::start_with(&net, Load::Library, 1, "on", &before)?;
    let share = measure(&net, || {
        let out = nginx.dir.path().join("got-#1");
        let url = format!("http://127.0.0.1:{PORT}/64k?[1-100]");
        Program::new(&net, Load::Library, &before[0])
            .args(&before[1..])
            .args([which("curl")?.as_os_str()])
            .args(["-sS", "--fail", "-o"])
            .args([out.as_os_str(), OsStr::new(&url)])
            .run_ok()?;
        Ok(100 << 16)
    })?;
    share.ensure_off_tcp("curl and nginx under valgrind")?;
    let sent = fs::read(nginx.dir.path().join("html/64k"))?;
    for n in 1..=100 {
        let got: &Path = &nginx.dir.path().join(format!("got-{n}"));
        ensure!(fs::read(got)? == sent, "{}: other bytes", got.display());
    }
    nginx.stop()?;
    logs.ensure_clean(3)
}
