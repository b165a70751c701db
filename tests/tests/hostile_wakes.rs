//! A peer of another user and the wakes of others: it reads, fills and ends what it was given to ring a server by, and
//! gives the server what must not be rung. The server goes on, and its other connections in memory with it.

mod hostile_common;

use anyhow::{Context, Result, ensure};
use hostile_common::{Talker, attack, attacked, counter, here, hostile, is_root, server_with};
use smcr_tests::apps::PORT;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, eventually, flipping};

/// Nobody polls: each answer is waited for asleep, so each is a wake.
const ASLEEP: (&str, &str) = ("SMCR_SPIN_US", "0");

/// Runs `attack` on a server while a client of it talks that sleeps for each answer.
fn beside(mode: &str, attack: impl FnOnce(&Net, &mut Talker) -> Result<()>) -> Result<()> {
    let net = Net::new()?;
    let mut server = attacked(&net, mode, &[ASLEEP])?;
    let (port, sleeps) = (PORT.to_string(), format!("{}={}", ASLEEP.0, ASLEEP.1));
    let before = ["env", sleeps.as_str()];
    let mut friend = Talker::start_through(&net, Load::Library, &before, &["127.0.0.1", &port])?;
    friend.ensure_accelerated()?;
    attack(&net, &mut friend).with_context(|| format!("{mode}: {:?}", server.so_far()))?;
    ensure!(!server.gone()?, "{mode}: the server has died: {:?}", server.so_far());
    let c = friend.connection()?;
    ensure!(c["state"] == "ACCELERATED", "{mode}: {c}");
    friend.end()
}

fn spoiled(how: &str) -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    for mode in ["epoll", "poll", "threads"] {
        beside(mode, |net, friend| {
            let spoiler = hostile(net, &["spoil", &here(), how]).start()?;
            eventually("spoils", || Ok(spoiler.so_far().0.contains("spoils"))).with_context(|| format!("{:?}", spoiler.so_far()))?;
            friend.exchange(2_000_000)?;
            println!("{mode}: {how}, {}", spoiler.so_far().0.trim());
            // Its own connection rests: what it could read would be somebody else's wake.
            ensure!(!spoiler.so_far().0.contains("ate"), "it has read wakes of others");
            Ok(())
        })
        .with_context(|| format!("{mode}, {how}"))?;
    }
    Ok(())
}

#[test]
fn wakes_that_are_read_away() -> Result<()> {
    spoiled("eat")
}

#[test]
fn what_is_rung_is_full() -> Result<()> {
    spoiled("fill")
}

#[test]
fn what_is_rung_has_ended() -> Result<()> {
    spoiled("end")
}

/// A client of another user, with the library: both ends sleep for each message, and wake each other without doorbell bytes.
#[test]
fn users_wake_each_other() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    for mode in ["epoll", "poll", "threads"] {
        let net = Net::new()?;
        let server = server_with(&net, Load::Library, mode, &[], &[ASLEEP])?;
        let sleeps = format!("{}={}", ASLEEP.0, ASLEEP.1);
        for user in ["0", "65533", "65534"] {
            let (port, user) = (PORT.to_string(), format!("TALKER_USER={user}"));
            let before = ["env", sleeps.as_str(), user.as_str()];
            let mut client = Talker::start_through(&net, Load::Library, &before, &["127.0.0.1", &port])?;
            client.ensure_accelerated()?;
            let ends = [client.pid(), server.pid()];
            let count = |name| -> Result<Vec<u64>> { ends.iter().map(|pid| counter(*pid, name)).collect() };
            let was = [count("event_wakes")?, count("bells_tx")?].concat();
            client.exchange(2_000_000)?;
            let now = [count("event_wakes")?, count("bells_tx")?].concat();
            let more: Vec<u64> = now.iter().zip(&was).map(|(now, was)| now - was).collect();
            let (wakes, bells) = more.split_at(ends.len());
            println!("{mode}, {user}: {wakes:?} wakes, {bells:?} doorbell bytes");
            // Either may answer before the other one sleeps, which is then asleep itself in between.
            let all: u64 = wakes.iter().sum();
            ensure!(all > 800 && wakes.iter().all(|n| *n > 0), "{mode}, {user}: woken {wakes:?} times in 1,000 messages");
            ensure!(bells.iter().all(|n| *n < 50) || flipping(), "{mode}, {user}: {bells:?} doorbell bytes");
            client.end()?;
        }
    }
    Ok(())
}

/// What a peer that sleeps may give the server to be woken by.
fn rung(kinds: &[&str]) -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    for mode in ["epoll", "poll", "threads"] {
        for kind in kinds {
            beside(mode, |net, friend| {
                friend.begin(1_000_000)?;
                println!("{mode}: {}", attack(net, &["asleep", &here(), kind])?.trim());
                friend.finish()
            })
            .with_context(|| format!("{mode}, {kind}"))?;
        }
    }
    Ok(())
}

#[test]
fn an_honest_one_is_rung() -> Result<()> {
    rung(&["honest"])
}

#[test]
fn what_would_hold_who_rings() -> Result<()> {
    rung(&["eventfd", "pipe", "full-socket", "tcp"])
}

#[test]
fn what_would_end_who_rings() -> Result<()> {
    rung(&["broken-pipe", "ended-socket"])
}

#[test]
fn what_belongs_to_others() -> Result<()> {
    rung(&["file", "named", "datagrams"])
}
