//! Hostile peers: a process that speaks the rendezvous and then writes nonsense into the shared
//! memory, offers memory that can be torn away, sends messages that are none, or dies on the way.
//! The server survives, and other connections, accelerated or not, notice nothing.

mod hostile_common;

use anyhow::{Context, Result, ensure};
use hostile_common::{Talker, attack, attack_as, attacked, attacked_when, by_others, everybody, here, hostile, hostile_as, is_root, survive};
use smcr_tests::apps::PORT;
use smcr_tests::census::Census;
use smcr_tests::dice;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, eventually};

/// The ways a server waits: each has another path into the shared memory.
const MODES: [&str; 3] = ["epoll", "threads", "raw"];

/// The seed of this run, which is printed.
fn announced_seed() -> u64 {
    let seed = dice::seed();
    println!("SMCR_TEST_SEED={seed}");
    seed
}

fn in_all_modes(attacks: &[&[&str]]) -> Result<()> {
    MODES.iter().try_for_each(|mode| survive(mode, None, attacks))
}

/// The tool reaches what it is meant to attack.
#[test]
fn an_honest_one_is_accelerated() -> Result<()> {
    in_all_modes(&[&["honest"]])
}

/// What a peer of the server's user may do, another user's may as well, also one that is in a user namespace of its own.
fn all_attacks(mode: &str, who: &str) -> Result<()> {
    let seed = announced_seed().to_string();
    let attacks: &[&[&str]] = &[
        &["honest"],
        &["field", "all"],
        &["fuzz", &seed, "10"],
        &["offer", "kinds"],
        &["offer", "versions"],
        &["offer", "garbage"],
        &["offer", "descriptors"],
        &["offer", "deaths"],
    ];
    survive(mode, Some(who), attacks).with_context(|| format!("SMCR_TEST_SEED={seed}"))
}

by_others!(all_attacks);

/// One value that no honest peer can have written.
#[test]
fn one_wrong_value() -> Result<()> {
    in_all_modes(&[&["field", "all"]])
}

/// Seeds of connections that are tried first, each time: one that has found something is added here.
const KEPT: [u64; 4] = [1, 99, 4242, 20261122];
/// Connections of one attack, which has a deadline.
const AT_ONCE: u64 = 40;

/// Random values in random fields while traffic flows. `SMCR_TEST_SEED` repeats a run, `SMCR_HOSTILE_CONNECTIONS` (for each way to
/// wait) makes it longer.
#[test]
fn random_values() -> Result<()> {
    let seed = announced_seed();
    let connections = std::env::var("SMCR_HOSTILE_CONNECTIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(AT_ONCE);
    let mut attacks: Vec<_> = KEPT.iter().map(|kept| ["fuzz".into(), kept.to_string(), "2".into()]).collect();
    for done in (0..connections).step_by(AT_ONCE as usize) {
        attacks.push(["fuzz".into(), (seed + done).to_string(), AT_ONCE.min(connections - done).to_string()]);
    }
    let attacks: Vec<_> = attacks.iter().map(|line| line.each_ref().map(String::as_str)).collect();
    in_all_modes(&attacks.iter().map(|line| &line[..]).collect::<Vec<_>>()).with_context(|| format!("SMCR_TEST_SEED={seed}"))
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
        let count = || -> Result<usize> { Ok(std::fs::read_dir(format!("/proc/{}/fd", server.pid()))?.count()) };
        attack(&net, &["offer", &here(), "descriptors"])?;
        let mut friend = Talker::start(&net, Load::Library, &["127.0.0.1", &PORT.to_string()])?;
        friend.ensure_accelerated()?; // the library has opened what it keeps
        friend.end()?;
        let before = count()?;
        for _ in 0..3 {
            println!("{mode}: {}", attack(&net, &["offer", &here(), "descriptors"])?.trim());
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
    let by_others = MODES.into_iter().zip(everybody().into_iter().skip(1));
    for (mode, who) in MODES.map(|mode| (mode, None)).into_iter().chain(by_others) {
        let net = Net::new()?;
        let _server = attacked(&net, mode, &[])?;
        let mut friend = Talker::start(&net, Load::Library, &["127.0.0.1", &PORT.to_string()])?;
        friend.ensure_accelerated()?;
        let stalled = hostile_as(&net, who, &["stall", &here()]).start()?;
        eventually("stalled", || Ok(stalled.so_far().0.contains("stalled")))?;
        friend.exchange(3_000_000).with_context(|| format!("{mode}, {who:?}"))?;
        friend.end()?;
    }
    Ok(())
}

/// Somebody holds more channels than there is room for: others are on TCP at worst, those of the server's user only while
/// it is one of these, and are accelerated again when they are gone.
#[test]
fn channels_held_by_a_stranger() -> Result<()> {
    for who in everybody() {
        let net = Net::new()?;
        let _server = attacked(&net, "threads", &[])?;
        let squatter = hostile_as(&net, who, &["squat", &here(), "600"]).start()?;
        eventually("channels", || Ok(squatter.so_far().0.contains("holding"))).with_context(|| format!("{who:?}: {:?}", squatter.so_far()))?;
        println!("{who:?}: {}", squatter.so_far().0.trim());
        let port = PORT.to_string();
        let mut t = Talker::start(&net, Load::Library, &["127.0.0.1", &port])?;
        t.exchange(2_000_000)?;
        t.end()?;
        if who.is_some() {
            await_room(&net).with_context(|| format!("{who:?}, meanwhile"))?; // other users have a part of it
        }
        drop(squatter);
        await_room(&net).with_context(|| format!("{who:?}"))?;
    }
    Ok(())
}

/// The same towards a server with few descriptors, which are the program's: third parties get a part of them, and a client of the
/// server's own user has what it needs meanwhile.
#[test]
fn few_descriptors_and_strangers() -> Result<()> {
    const LIMIT: libc::rlim_t = 256;
    if !is_root() {
        return Ok(());
    }
    for who in ["nobody", "namespace", "unmapped"] {
        let net = Net::new()?;
        let limited = || {
            let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
            // SAFETY: a plain system call on a local.
            if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        let server = attacked_when(&net, "threads", limited)?;
        let open = || -> Result<u64> { Ok(std::fs::read_dir(format!("/proc/{}/fd", server.pid()))?.count() as u64) };
        let before = open()?;
        let squatter = hostile_as(&net, Some(who), &["squat", &here(), "400"]).start()?;
        eventually("channels", || Ok(squatter.so_far().0.contains("holding"))).with_context(|| format!("{who}: {:?}", squatter.so_far()))?;
        // A client may come while the server has still to look at the channels before its own: then it stays on TCP, and the next one doesn't.
        await_room(&net).with_context(|| who)?;
        let now = open()?;
        println!("{who}: {}; {before} descriptors before, {now} now", squatter.so_far().0.trim());
        ensure!(now <= before + LIMIT / 4, "{who}: {before} descriptors before, {now} now");
    }
    Ok(())
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

/// Another user keeps the memory of connections that have ended.
#[test]
fn memory_that_is_kept() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    for (mode, who) in MODES.into_iter().zip(["nobody", "namespace", "unmapped"].into_iter().cycle()) {
        let net = Net::new()?;
        let _server = attacked(&net, mode, &[])?;
        attack_as(&net, Some(who), &["keep", &here()]).with_context(|| format!("{mode}, {who}"))?;
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
