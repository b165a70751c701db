//! A child that has given its privileges up and is taken over does what it can to the process that it was forked from:
//! it writes into all that it has from the library, and reads what wakes others. That process must not crash, must not
//! hang, and has every byte right on the connections that are its own, which stay in memory. And a peer that becomes another
//! user: it has nothing more that wakes those of its former user, nor they what wakes it.

mod hostile_common;

use anyhow::{Context, Result, ensure};
use hostile_common::{Talker, is_root, server_with};
use smcr_tests::apps::PORT;
use smcr_tests::dice;
use smcr_tests::net::Net;
use smcr_tests::process::{DEADLINE, Load, Program};
use smcr_tests::share;
use smcr_tests::twice::compile_with;
use std::collections::BTreeSet;

/// Seconds that an attack takes.
const SECS: &str = "3";

/// What the server said behind `word`.
fn number(said: &str, word: &str) -> Result<u64> {
    let (_, rest) = said.split_once(word).with_context(|| format!("no {word:?} in {said}"))?;
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next();
    Ok(digits.unwrap_or_default().parse()?)
}

/// Runs both ends while the child attacks; what the server said.
fn taken_over(load: Load, how: &str) -> Result<String> {
    let net = Net::new()?;
    let program = compile_with("cc", "drops", &["drops.c"], &["-O1", "-g", "-pthread"])?;
    let (port, seed) = (PORT.to_string(), dice::seed().to_string());
    let mut said = String::new();
    let share = share::measure(&net, || {
        let server = Program::new(&net, load, &program).args(["serve", &port, SECS, &seed, how]).start()?;
        net.wait_listen(PORT)?;
        let caller = Program::new(&net, load, &program).args(["call", &port, SECS, &seed]).run()?;
        ensure!(caller.status.success(), "{how}, seed {seed}: {caller}\n{:?}", server.so_far());
        let server = server.wait(DEADLINE)?;
        ensure!(server.status.success(), "{how}, seed {seed}: {server}");
        said = server.out;
        Ok(2 * number(&caller.out, "got back")?)
    })?;
    println!("{load:?}, {how}, seed {seed}: {}, {:.1} % of the bytes on lo", said.trim(), share.percent());
    if load == Load::Library {
        share.ensure_off_tcp(how)?;
    }
    Ok(said)
}

fn attacked(how: &str) -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    for load in Load::BOTH {
        let said = taken_over(load, how)?;
        if load == Load::Library {
            ensure!(number(&said, "before")? > 0, "the test shows nothing: {said}");
            ensure!(number(&said, "after")? == 0, "pages of the parent's are in reach: {said}");
        }
    }
    Ok(())
}

#[test]
fn random_bytes() -> Result<()> {
    attacked("random")
}

#[test]
fn chosen_values() -> Result<()> {
    attacked("chosen")
}

#[test]
fn wakes_that_are_eaten() -> Result<()> {
    attacked("eat")
}

/// The eventfds of a process, by the numbers that the kernel gives them.
fn events(pid: i32) -> Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // One may be closed meanwhile.
        let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        let number = text.lines().find_map(|l| l.strip_prefix("eventfd-id:"));
        found.extend(number.map(|n| n.trim().parse::<u64>()).transpose()?);
    }
    Ok(found)
}

/// A client of root's becomes another user while it has a connection in memory; then it reads away what it can, while
/// another client of root's talks to the same server.
#[test]
fn a_peer_that_becomes_another_user() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    for mode in ["epoll", "poll", "threads"] {
        let net = Net::new()?;
        let server = server_with(&net, Load::Library, mode, &[], &[("SMCR_SPIN_US", "0")])?;
        let port = PORT.to_string();
        let talk = || Talker::start_through(&net, Load::Library, &["env", "SMCR_SPIN_US=0"], &["127.0.0.1", &port]);
        let (mut leaver, mut friend) = (talk()?, talk()?);
        leaver.ensure_accelerated()?;
        friend.ensure_accelerated()?;
        let shared = events(leaver.pid())?.intersection(&events(server.pid())?).count();
        ensure!(shared > 0, "{mode}: the test shows nothing");
        leaver.told("user 65534")?;
        friend.begin(500_000)?;
        let eaten = leaver.told("eat 1500")?;
        println!("{mode}: {eaten} bytes read away");
        friend.finish().with_context(|| format!("{mode}: a friend"))?;
        // Its own connection stays in memory, and nobody sleeps for ever; what wakes one of them the other does not have.
        leaver.exchange(1_000_000).with_context(|| format!("{mode}: the one that left"))?;
        let c = leaver.connection()?;
        ensure!(c["state"] == "ACCELERATED", "{mode}: {c}");
        let shared = events(leaver.pid())?.intersection(&events(server.pid())?).count();
        ensure!(shared == 0, "{mode}: {shared} eventfds are both's still");
        leaver.end()?;
        friend.end()?;
    }
    Ok(())
}
