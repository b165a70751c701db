//! Claims that lead nowhere: whatever a peer writes, the server does not run in circles, and serves
//! the others.

mod hostile_common;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hostile_common::{Talker, attacked, by_others, here, hostile, hostile_as};
use smcr_tests::apps::PORT;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program, eventually};

const CLAIMS: &[&str] = &[
    "frozen",
    "taken",
    "frozen-taken",
    "end-4",
    "end-8",
    "end-top",
    "end-reset",
    "bells",
    "bells-counted",
    "uncounted",
    "uncounted-end",
    "proof-none",
    "proof-part",
    "proof-begun",
    "proof-most",
    "proof-again",
];

/// Clock ticks of a process so far.
fn ticks(pid: i32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(") ").next().context("stat")?.split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

/// The server rests while the claims stand: less than a fifth of a processor, in half a second of a
/// few. One that runs in circles uses a whole one.
fn ensure_at_rest(pid: i32) -> Result<()> {
    let mut used = 0;
    for _ in 0..6 {
        let (start, before) = (Instant::now(), ticks(pid)?);
        std::thread::sleep(Duration::from_millis(500));
        used = ticks(pid)? - before;
        if used < start.elapsed().as_millis() as u64 / 50 {
            return Ok(());
        }
    }
    anyhow::bail!("{used} ticks in half a second")
}

fn nowhere(mode: &str, who: Option<&str>) -> Result<()> {
    let net = Net::new()?;
    let server = attacked(&net, mode, &[])?;
    let mut friend = Talker::start(&net, Load::Library, &["127.0.0.1", &PORT.to_string()])?;
    friend.ensure_accelerated()?;
    let mut stay = Vec::new();
    for name in CLAIMS {
        let claim = hostile_as(&net, who, &["claim", &here(), name]).start()?;
        eventually("claim", || Ok(claim.so_far().0.contains("claimed"))).with_context(|| format!("{mode}, {who:?}, {name}: {:?}", claim.so_far()))?;
        ensure_at_rest(server.pid()).with_context(|| format!("{mode}, {name}"))?;
        friend.exchange(1_000_000).with_context(|| format!("a friend, {mode}, {name}"))?;
        stay.push(claim);
    }
    ensure_at_rest(server.pid()).with_context(|| format!("{mode}, all"))?;
    friend.end()
}

#[test]
fn in_an_epoll_loop() -> Result<()> {
    nowhere("epoll", None)
}

#[test]
fn in_a_loop_that_is_not_seen() -> Result<()> {
    nowhere("raw", None)
}

#[test]
fn in_blocking_threads() -> Result<()> {
    nowhere("threads", None)
}

// The claims of another user's, also of one that is in a user namespace of its own.
by_others!(|mode, who| nowhere(mode, Some(who)));

/// A peer that asks for a ring full of bytes through TCP and reads none of them, where the kernel's
/// buffers are smaller than the ring.
#[test]
fn small_buffers() -> Result<()> {
    for mode in ["epoll", "raw", "threads"] {
        let net = Net::new()?;
        let small = "cd /proc/sys/net/ipv4; echo 4096 16384 16384 > tcp_wmem; echo 4096 16384 16384 > tcp_rmem";
        Program::new(&net, Load::Native, "sh").args(["-c", small]).run_ok()?;
        let server = attacked(&net, mode, &[])?;
        let mut friend = Talker::start(&net, Load::Library, &["127.0.0.1", &PORT.to_string()])?;
        friend.ensure_accelerated()?;
        let stalled = hostile(&net, &["stall", &here()]).start()?;
        eventually("stalled", || Ok(stalled.so_far().0.contains("stalled"))).with_context(|| format!("{mode}: {:?}", stalled.so_far()))?;
        friend.exchange(1_000_000).with_context(|| format!("a friend, {mode}"))?;
        ensure_at_rest(server.pid()).with_context(|| mode.to_string())?;
        ensure!(friend.connection()?["state"] == "ACCELERATED");
        friend.end()?;
    }
    Ok(())
}
