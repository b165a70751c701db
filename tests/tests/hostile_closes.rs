//! A peer of another user passes descriptors whose close waits: a TCP socket that lingers, a file of a file system of its
//! own. The server and its other connections go on, and the server ends when it is told to.

mod hostile_common;

use anyhow::{Context, Result, ensure};
use hostile_common::{Talker, attacked, here, hostile, is_root};
use nix::sys::signal::Signal;
use smcr_tests::apps::PORT;
use smcr_tests::net::Net;
use smcr_tests::process::{DEADLINE, Load, eventually};

/// One thread does everything in the first: who holds it holds the server.
const MODES: [&str; 2] = ["epoll", "threads"];
const KINDS: [&str; 2] = ["linger", "fuse"];

fn held(place: &str) -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    for (what, mode) in KINDS.iter().flat_map(|what| MODES.iter().map(move |mode| (what, mode))) {
        let which = format!("{what}, {place}, {mode}");
        if *what == "fuse" && std::fs::File::open("/dev/fuse").is_err() {
            println!("{which}: left out, there is no /dev/fuse");
            continue;
        }
        let net = Net::new()?;
        let server = attacked(&net, mode, &[])?;
        let mut friend = Talker::start(&net, Load::Library, &["127.0.0.1", &PORT.to_string()])?;
        friend.ensure_accelerated()?;
        let mut holder = hostile(&net, &["hold", &here(), what, place]).start()?;
        eventually("held", || {
            ensure!(!holder.gone()?, "{:?}", holder.so_far());
            Ok(holder.so_far().0.contains("held"))
        })
        .with_context(|| format!("{which}: {:?}", holder.so_far()))?;
        friend.exchange(1_000_000).with_context(|| which.clone())?;
        let c = friend.connection()?;
        ensure!(c["state"] == "ACCELERATED", "{which}: {c}");
        let asked = holder.so_far().0.matches("asked").count();
        println!("{which}: the file system was asked {asked} times");
        friend.end()?;
        // The holder is there still.
        server.signal(Signal::SIGTERM)?;
        server.wait(DEADLINE).with_context(|| format!("{which}: the end"))?;
    }
    Ok(())
}

#[test]
fn in_an_offer() -> Result<()> {
    held("offer")
}

#[test]
fn in_the_place_of_what_is_rung() -> Result<()> {
    held("bell")
}

#[test]
fn beyond_what_a_message_has() -> Result<()> {
    held("many")
}

#[test]
fn unread_in_a_channel_that_has_ended() -> Result<()> {
    held("left")
}

#[test]
fn in_the_queue_of_what_is_rung() -> Result<()> {
    held("nested")
}
