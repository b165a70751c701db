//! Hostile peers: a process that speaks the rendezvous and then writes nonsense into the shared
//! memory, offers memory that can be torn away, sends messages that are none, or dies on the way.
//! The server survives, and other connections, accelerated or not, notice nothing.

mod hostile_common;

use anyhow::{Context, Result, ensure};
use hostile_common::{Talker, attack, attacked, here, hostile, is_root};
use smcr_tests::apps::PORT;
use smcr_tests::census::Census;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, eventually};

/// The ways a server waits: each has another path into the shared memory.
const MODES: [&str; 3] = ["epoll", "threads", "raw"];

/// Runs attacks on a server while a client of it talks, before, meanwhile and after.
fn survive(mode: &str, attacks: &[&[&str]]) -> Result<()> {
    let net = Net::new()?;
    let mut server = attacked(&net, mode, &[])?;
    let port = PORT.to_string();
    let mut friend = Talker::start(&net, Load::Library, &["127.0.0.1", &port])?;
    let mut native = Talker::start(&net, Load::Native, &["127.0.0.1", &port])?;
    friend.ensure_accelerated()?;
    for attack_args in attacks {
        friend.begin(3_000_000)?;
        native.begin(1_000_000)?;
        let mut line = vec![attack_args[0], "ADDRESS"];
        line.extend(&attack_args[1..]);
        let here = here();
        line[1] = &here;
        let out = attack(&net, &line);
        ensure!(
            !server.gone()?,
            "the server has died: {:?}\n{out:?}",
            server.so_far()
        );
        println!(
            "{mode}: {}",
            out.with_context(|| format!("{mode}: {attack_args:?}"))?
                .trim()
        );
        friend
            .finish()
            .with_context(|| format!("a friend, {mode}: {attack_args:?}"))?;
        native
            .finish()
            .with_context(|| format!("a native one, {mode}: {attack_args:?}"))?;
    }
    let c = friend.connection()?;
    ensure!(c["state"] == "ACCELERATED", "{c}");
    friend.end()?;
    native.end()?;
    let mut late = Talker::start(&net, Load::Library, &["127.0.0.1", &port])?;
    late.ensure_accelerated()?;
    late.end()
}

fn in_all_modes(attacks: &[&[&str]]) -> Result<()> {
    MODES.iter().try_for_each(|mode| survive(mode, attacks))
}

/// The tool reaches what it is meant to attack.
#[test]
fn an_honest_one_is_accelerated() -> Result<()> {
    in_all_modes(&[&["honest"]])
}

/// One value that no honest peer can have written.
#[test]
fn one_wrong_value() -> Result<()> {
    in_all_modes(&[&["field", "all"]])
}

/// Random values in random fields while traffic flows. `SMCR_TEST_SEED` repeats a run.
#[test]
fn random_values() -> Result<()> {
    let seed = match std::env::var("SMCR_TEST_SEED") {
        Ok(text) => text.parse()?,
        Err(_) => u64::from(std::process::id()) * 1000,
    };
    println!("SMCR_TEST_SEED={seed}");
    in_all_modes(&[&["fuzz", &seed.to_string(), "40"]])
        .with_context(|| format!("SMCR_TEST_SEED={seed}"))
}

#[test]
fn memory_that_can_be_torn_away() -> Result<()> {
    in_all_modes(&[&["offer", "kinds"]])
}

#[test]
fn other_versions() -> Result<()> {
    in_all_modes(&[&["offer", "versions"]])
}

#[test]
fn messages_that_are_none() -> Result<()> {
    in_all_modes(&[&["offer", "garbage"]])
}

/// Too many descriptors, too few, and none of them stays open.
#[test]
fn descriptors_that_are_not_asked_for() -> Result<()> {
    for mode in MODES {
        let net = Net::new()?;
        let server = attacked(&net, mode, &[])?;
        let count = || -> Result<usize> {
            Ok(std::fs::read_dir(format!("/proc/{}/fd", server.pid()))?.count())
        };
        attack(&net, &["offer", &here(), "descriptors"])?;
        let mut friend = Talker::start(&net, Load::Library, &["127.0.0.1", &PORT.to_string()])?;
        friend.ensure_accelerated()?; // the library has opened what it keeps
        friend.end()?;
        let before = count()?;
        for _ in 0..3 {
            println!(
                "{mode}: {}",
                attack(&net, &["offer", &here(), "descriptors"])?.trim()
            );
        }
        // Ended channels are closed when somebody looks at them.
        eventually("descriptors are closed", || {
            let mut t = Talker::start(&net, Load::Library, &["127.0.0.1", &PORT.to_string()])?;
            t.exchange(200_000)?;
            t.end()?;
            Ok(count()? <= before + 2)
        })
        .with_context(|| format!("{mode}: {before} before, {:?} now", count()))?;
        server.signal(nix::sys::signal::Signal::SIGTERM)?;
    }
    Ok(())
}

#[test]
fn death_at_each_step() -> Result<()> {
    in_all_modes(&[&["offer", "deaths"]])
}

/// A peer that asks for its bytes through TCP and reads none of them.
#[test]
fn a_peer_that_reads_nothing() -> Result<()> {
    for mode in MODES {
        let net = Net::new()?;
        let _server = attacked(&net, mode, &[])?;
        let mut friend = Talker::start(&net, Load::Library, &["127.0.0.1", &PORT.to_string()])?;
        friend.ensure_accelerated()?;
        let stalled = hostile(&net, &["stall", &here()]).start()?;
        eventually("stalled", || Ok(stalled.so_far().0.contains("stalled")))?;
        friend.exchange(3_000_000).with_context(|| mode)?;
        friend.end()?;
    }
    Ok(())
}

/// Somebody holds more channels than there is room for: others are on TCP at worst, and are
/// accelerated again when they are gone.
#[test]
fn channels_held_by_a_stranger() -> Result<()> {
    let net = Net::new()?;
    let server = attacked(&net, "threads", &[])?;
    let squatter = hostile(&net, &["squat", &here(), "600"]).start()?;
    eventually("channels", || Ok(squatter.so_far().0.contains("holding")))
        .with_context(|| format!("{:?}", squatter.so_far()))?;
    let port = PORT.to_string();
    let mut t = Talker::start(&net, Load::Library, &["127.0.0.1", &port])?;
    t.exchange(2_000_000)?;
    t.end()?;
    drop(squatter);
    await_room(&net)?;
    server.signal(nix::sys::signal::Signal::SIGTERM)
}

/// Another uid offers more memory than the server may map, on many connections at once and again where it was refused.
/// No more than the limit is ever mapped, descriptors and private memory stay, others go on and have it when it is gone.
#[test]
fn memory_beyond_its_limits() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    for mode in MODES {
        let net = Net::new()?;
        let server = attacked(&net, mode, &[("SMCR_MAX_MEMORY", "4")])?;
        let port = PORT.to_string();
        let mut friend = Talker::start(&net, Load::Library, &["127.0.0.1", &port])?;
        friend.ensure_accelerated()?;
        let before = Census::of(server.pid())?;
        let hoarder = hostile(&net, &["hoard", &here(), "40"]).start()?;
        let mut most = 0;
        eventually("hoarded", || {
            most = most.max(Census::of(server.pid())?.regions);
            Ok(hoarder.so_far().0.contains("holding"))
        })
        .with_context(|| format!("{mode}: {:?}", hoarder.so_far()))?;
        let now = Census::of(server.pid())?;
        // A region is 520 KiB: seven in four megabytes, the friend's among them.
        println!("{mode}: {}; {most} mapped at most", hoarder.so_far().0.trim());
        ensure!(now.regions == 7 && most <= 7, "{mode}: {} regions, {most} at most", now.regions);
        friend.exchange(1_000_000).with_context(|| mode)?;
        let c = friend.connection()?;
        ensure!(c["state"] == "ACCELERATED", "{mode}: {c}");
        let mut other = Talker::start(&net, Load::Library, &["127.0.0.1", &port])?;
        other.exchange(500_000).with_context(|| mode)?;
        ensure!(other.connection()?["state"] != "ACCELERATED", "{mode}");
        other.end()?;
        drop(hoarder);
        friend.exchange(1_000_000).with_context(|| mode)?;
        friend.end()?;
        await_room(&net).with_context(|| mode)?;
        // A channel of each process that was here may be open; connections were 40.
        let leaked = Census::of(server.pid())?.leaked_since(&before, 4, 2048);
        ensure!(leaked.is_empty(), "{mode}: {leaked:?}");
    }
    Ok(())
}

/// Until a connection is accelerated again.
fn await_room(net: &Net) -> Result<()> {
    eventually("room again", || {
        let mut t = Talker::start(net, Load::Library, &["127.0.0.1", &PORT.to_string()])?;
        t.exchange(500_000)?;
        let state = t.connection()?["state"].clone();
        t.end()?;
        Ok(state == "ACCELERATED")
    })
}
