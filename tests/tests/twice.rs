//! Every case of the run-twice programs as a test of its own, named PROGRAM::CASE.
//! `cargo test --test twice -- epoll` runs those with "epoll" in their names. The environment
//! variable `SMCR_TESTS_NATIVE=1` runs them natively only, to check the cases themselves.

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use smcr_tests::twice::{self, Case, Ends};

/// Cases in which the library differs from TCP (docs/interpose.md says how and why). They run all the same:
/// natively they must be sound, and under the library differ, else they belong to the others.
const KNOWN: &[&str] = &["wrong_calls::holes", "bequests::without", "unread::half_closed_without"];

/// Cases that hold only while connections stay where they are (`SMCR_FLIP` does not move them): what lies in TCP behind the ring
/// of a peer that stands still can't be had back (README.md, "Limits").
const STEADY: &[&str] = &["passing::stopped_peer"];

/// Cases that run once more with connections that move between memory and TCP with nearly each message, where `make flip` moves
/// them once in many; (mean bytes, seed).
const FLIPPING: &[(&str, &str)] = &[
    ("closes::in_recv", "4096,99"),
    ("flags::peek_growing", "4096,99"),
    ("calls::zero_length", "4096,99"),
    ("leaving::jumps", "4096,99"),
    ("leaving::exits", "4096,99"),
    ("leaving::cancelled", "4096,99"),
    ("limits::alt_stack", "4096,99"),
    ("epoll_odd::edges_unread", "16,3"),
    ("epoll_odd::edges_read", "16,3"),
    ("streams::records", "4096,99"),
    ("streams::wander_cork", "4096,99"),
    ("flags::waitall", "4096,99"),
    ("flags::more_and_cork", "4096,99"),
    ("amounts::low_water", "4096,99"),
    ("close::half_close_100mb_back", "65536,99"),
    ("threads::reader_before_the_switch", "4096,99"),
    ("clans::forks_2", "4096,611"),
    ("clans::execs_1", "4096,611"),
    ("away::helped_epoll", "4096,11"),
];

/// Sources in `c/`, one subject each.
const PROGRAMS: &[&str] = &[
    "calls",
    "wrong_calls",
    "flags",
    "nonblock",
    "ticking",
    "peek_offsets",
    "vectors",
    "lengths",
    "filters",
    "ahead",
    "amounts",
    "entries",
    "numbers",
    "numbered",
    "own_names",
    "splices",
    "sources",
    "refused",
    "unconnected",
    "settings",
    "flow",
    "buffers",
    "close",
    "closes",
    "halves",
    "options",
    "others",
    "again",
    "ulp",
    "seldom",
    "signals",
    "interrupts",
    "leaving",
    "leaving_sleep",
    "cancelled",
    "waits",
    "expires",
    "notices",
    "epoll",
    "epoll_late",
    "epoll_nested",
    "epoll_more",
    "epoll_thousands",
    "epoll_wakes",
    "epoll_asleep",
    "epoll_room",
    "epoll_turns",
    "epoll_once",
    "epoll_pool",
    "epoll_odd",
    "epoll_idle",
    "epoll_words",
    "epoll_gone",
    "epoll_execs",
    "epoll_strays",
    "posted",
    "selects",
    "polling",
    "rawwait",
    "rawblock",
    "dead_peers",
    "uring",
    "aio",
    "fds",
    "children",
    "births",
    "workers",
    "child_readers",
    "vforks",
    "selves",
    "handover",
    "passed",
    "passing",
    "execs",
    "inherited",
    "beside",
    "heirs",
    "unread",
    "away",
    "bequests",
    "chases",
    "stdio",
    "reopened",
    "threads",
    "crowds",
    "withdrawn",
    "twins",
    "connects",
    "starts",
    "death",
    "behind",
    "destroyed",
    "killed",
    "streams",
    "walks",
    "rambles",
    "mazes",
    "ringed",
    "doors",
    "clans",
    "addresses",
    "sandbox",
    "privileges",
    "limits",
];
/// Scripts in `py/`.
const SCRIPTS: &[&str] = &["echo.py"];

fn main() -> Result<()> {
    let arguments = Arguments::from_args();
    let native_only = std::env::var_os("SMCR_TESTS_NATIVE").is_some();
    let mut trials = Vec::new();
    for program in PROGRAMS {
        add(&mut trials, program, twice::cases(program)?, native_only);
    }
    for script in SCRIPTS {
        add(&mut trials, script.trim_end_matches(".py"), twice::python_cases(script)?, native_only);
    }
    libtest_mimic::run(&arguments, trials).exit()
}

fn add(trials: &mut Vec<Trial>, program: &str, cases: Vec<Case>, native_only: bool) {
    for case in cases {
        let name = format!("{program}::{}", case.name);
        if let Some((_, flip)) = FLIPPING.iter().find(|(flipping, _)| !native_only && *flipping == name) {
            let case = case.clone();
            trials.push(Trial::test(format!("{name}::flipping"), move || case.check_flipping(flip).map_err(|e| Failed::from(format!("{e:#}")))));
        }
        trials.push(Trial::test(name, move || attempts(&case, native_only).map_err(|e| Failed::from(format!("{e:#}")))));
    }
}

/// Some cases depend on how two processes are scheduled, natively too: a case fails when it fails so
/// often in a row, and says so when it needed more than one attempt. What hung, died by a signal or had other bytes gets none.
const ATTEMPTS: u32 = 3;

fn attempts(case: &Case, native_only: bool) -> Result<()> {
    let mut last = Ok(());
    for n in 1..=ATTEMPTS {
        last = check(case, native_only);
        match &last {
            Ok(()) if n > 1 => {
                println!("{}: passed at attempt {n}", case.name);
                return last;
            }
            Ok(()) => return last,
            Err(e) if is_certain(&format!("{e:#}")) => return last,
            // What passes in the end is looked at as well by those who look for races.
            Err(e) if n < ATTEMPTS => println!("{}: attempt {n}: {e:#}", case.name),
            Err(_) => {}
        }
    }
    last
}

/// A failure under the library that the scheduling can't make: see `process::Running::await_end`, `Ended::how`, and `matches` in c/bytes.c.
fn is_certain(error: &str) -> bool {
    let stream = |line: &str| line.contains(": byte ") && line.ends_with(" differs");
    let certain = |line: &str| stream(line) || CRASHES.iter().any(|how| line.ends_with(how));
    !error.starts_with("natively") && (error.contains(" did not end\n") || error.lines().any(certain))
}

/// SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
const CRASHES: [&str; 5] = [": signal 4", ": signal 6", ": signal 7", ": signal 8", ": signal 11"];

fn check(case: &Case, native_only: bool) -> Result<()> {
    if !native_only && KNOWN.iter().any(|known| case.is_called(known)) {
        return case.check_known();
    }
    if !native_only && STEADY.iter().any(|steady| case.is_called(steady)) {
        return case.check_with(&|program| program.env("SMCR_FLIP", "0"));
    }
    if !native_only {
        return case.check();
    }
    let start = std::time::Instant::now();
    let (first, second) = (case.run(Ends::Neither)?, case.run(Ends::Neither)?);
    println!("{}: {:?}", case.name, start.elapsed() / 2);
    case.ensure_sound(&first)?;
    anyhow::ensure!(first.transcript == second.transcript, "two native runs differ:\n{}\n---\n{}", first.transcript, second.transcript);
    Ok(())
}
