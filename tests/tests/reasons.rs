//! Reasons by name: a connection of a real program is brought into each state, and `smcrctl sock` and the counts of `smcrctl stats`
//! have to say why it is on TCP. Others are in `control::settings`, `harmless`,
//! `hostile_forgers` and `limits`, those of RDMA in `lab`; docs/operating.md has one that no connection shows. Run by `tests/suites.sh reasons`.

#[allow(dead_code)] // a part of it
#[path = "control/bed.rs"]
mod bed;
mod hostile_common;

use anyhow::{Context, Result, ensure};
use bed::{Bed, PORTS};
use hostile_common::{Talker, connections, counter, hostile, is_root, stats};
use nix::sys::signal::Signal;
use smcr_tests::process::{DEADLINE, Load, Running, eventually, flipping};

const SERVER: &str = "127.0.0.1:7000";

/// The one connection of the process says that reason, and is counted by it.
fn says(pid: i32, reason: &str) -> Result<()> {
    let mut seen = Vec::new();
    let shown = eventually(reason, || {
        seen = connections(pid)?;
        seen.retain(|c| c["role"] != "listener");
        Ok(seen.len() == 1 && seen[0]["reason"]["name"] == reason)
    });
    shown.with_context(|| format!("{seen:?}"))?;
    let sockets = &stats(pid)?["sockets"];
    ensure!(sockets["reason"].as_object().is_some_and(|m| m.len() == 1 && m[reason] == 1), "{reason}: {sockets}; {seen:?}");
    Ok(())
}

/// Waits until it has said this.
fn said(program: &mut Running, what: &str) -> Result<()> {
    eventually(what, || {
        let said = program.so_far();
        ensure!(!program.gone()?, "{said:?}");
        Ok(said.0.contains(what))
    })
    .with_context(|| format!("{:?}", program.so_far()))
}

/// The server that closes no connection, whatever becomes of it.
fn keeper(bed: &Bed) -> Result<Running<'_>> {
    bed.single(&["keeps", "7000"])
}

/// What a program does with a connection (`steered.py`), before anything was sent or in memory, and the reason at its end.
const ACTIONS: [(&str, bool, &str); 23] = [
    ("fdopen", false, "stdio"),
    ("fdopen", true, "stdio"),
    ("urgent", false, "urgent"),
    ("urgent", true, "urgent"),
    ("zerocopy", false, "zerocopy"),
    ("zerocopy", true, "zerocopy"),
    ("o-async", false, "o-async"),
    ("o-async", true, "o-async"),
    ("pacing", false, "pacing"),
    ("pass", false, "passed"),
    ("pass", true, "passed"),
    ("fork", false, "fork-shared"),
    ("io-uring", false, "io-uring"),
    ("seccomp", false, "seccomp"),
    ("ulp", false, "ulp"),
    ("ulp", true, "ulp"),
    ("peek-off", false, "peek-off"),
    ("filter", false, "tcp-special"),
    ("filter", true, "tcp-special"),
    ("stamps", false, "tcp-special"),
    ("stamps", true, "tcp-special"),
    ("aio", false, "aio"),
    ("aio", true, "aio"),
];

#[test]
fn options_and_calls() -> Result<()> {
    let bed = Bed::new()?;
    let _server = bed.server(&[])?;
    for (action, is_later, reason) in ACTIONS {
        let client = bed.client(&[])?;
        client.tell(&format!("open a {}", PORTS[0]))?;
        if is_later {
            client.moves_to_memory("a")?;
        }
        client.tell(&format!("do a {action}"))?;
        client.stays_on_tcp("a")?;
        says(client.program.pid(), reason).with_context(|| format!("{action}, in memory before: {is_later}"))?;
    }
    Ok(())
}

#[test]
fn a_user_who_is_not_allowed() -> Result<()> {
    let bed = Bed::new()?;
    bed.ok(&["set", "--user", "peer_uid=12345"])?;
    let _server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.open("a", PORTS[0])?;
    client.stays_on_tcp("a")?;
    says(client.program.pid(), "peer-uid")?;
    client.tell("close a")?;
    eventually("its end", || Ok(stats(client.program.pid())?["ended_on_tcp"]["peer-uid"] == 1))
}

/// The accepting side has been in the kernel since before there was an offer, and what it sends goes on meanwhile.
#[test]
fn a_reader_inside_the_kernel() -> Result<()> {
    let bed = Bed::new()?;
    let server = bed.single(&["pours", "7000"])?;
    let client = bed.client(&[])?;
    client.tell(&format!("open a {}", PORTS[0]))?;
    client.tell("fetch a 50000")?;
    says(server.pid(), "reader")?;
    ensure!(connections(client.program.pid())?.iter().all(|c| c["mode"] == "tcp"));
    Ok(())
}

/// The client has shut down its sending side, and does not read what the server sends then: the rest of it is TCP's.
#[test]
fn a_half_closed_connection() -> Result<()> {
    if flipping() {
        return Ok(()); // it may be on TCP by then
    }
    let bed = Bed::new()?;
    let mut server = bed.sink(0, 10)?;
    let client = bed.client(&[])?;
    client.tell(&format!("open a {}", PORTS[0]))?;
    for _ in 0..110 {
        client.tell("put a 10000")?;
    }
    said(&mut server, "sent")?;
    client.tell("fetch a 10")?;
    client.tell("end a")?;
    server.signal(Signal::SIGUSR1)?;
    says(server.pid(), "half-closed")
}

#[test]
fn a_ring_that_nobody_reads() -> Result<()> {
    if flipping() {
        return Ok(());
    }
    let bed = Bed::new()?;
    let server = bed.sink(0, 20_000_000)?;
    let client = bed.client(&[])?;
    client.tell(&format!("open a {}", PORTS[0]))?;
    for _ in 0..110 {
        client.tell("put a 10000")?;
    }
    says(server.pid(), "not-read")
}

/// Its socket is set to be non-blocking, and nobody has waited for it in a hooked call.
#[test]
fn a_writer_that_waits_unseen() -> Result<()> {
    if flipping() {
        return Ok(());
    }
    let bed = Bed::new()?;
    let _server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.open("a", PORTS[0])?;
    client.moves_to_memory("a")?;
    client.tell("do a full")?;
    says(client.program.pid(), "unseen-writer")
}

/// A child has the connection too when its parent becomes another user. (On TCP it is left to whom is alone with it in the end: `fork-shared`.)
#[test]
fn privileges_of_one_of_two_holders() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let bed = Bed::new()?;
    let _server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.tell(&format!("open a {}", PORTS[0]))?;
    client.moves_to_memory("a")?;
    client.tell("do a fork")?;
    client.tell("do a user")?;
    client.stays_on_tcp("a")?;
    says(client.program.pid(), "privileges")
}

/// Bytes past every hook, before there is an offer and in memory. There nobody can say where in the stream they stand: a reset.
#[test]
fn bytes_that_the_library_did_not_see() -> Result<()> {
    let bed = Bed::new()?;
    let mut server = keeper(&bed)?;
    let mut client = Talker::start(&bed.net, Load::Library, &["127.0.0.1", "7000"])?;
    ensure!(client.told("raw")? == "1");
    client.ensure_on_tcp("raw-io")?;
    says(client.pid(), "raw-io")?;
    client.end()?;
    if flipping() {
        return Ok(()); // on TCP such a byte is one of the stream
    }

    server.signal(Signal::SIGKILL)?;
    server.await_end(DEADLINE)?;
    let server = keeper(&bed)?;
    let mut client = Talker::start(&bed.net, Load::Library, &["127.0.0.1", "7000"])?;
    client.ensure_accelerated()?;
    ensure!(client.told("raw")? != "1", "a stray byte has an echo");
    says(server.pid(), "raw-io")
}

/// Somebody marks a switch and sends something else than the proof: it is payload, and the connection goes on.
#[test]
fn something_else_in_the_place_of_the_proof() -> Result<()> {
    for (claim, counted) in [("proof-part", 0), ("proof-wrong", 1)] {
        let bed = Bed::new()?;
        let server = keeper(&bed)?;
        let mut liar = hostile(&bed.net, &["claim", SERVER, claim]).start()?;
        said(&mut liar, "claimed")?;
        says(server.pid(), "stream-proof").context(claim)?;
        ensure!(counter(server.pid(), "proof_failures")? == counted, "{claim}");
    }
    Ok(())
}

#[test]
fn a_peer_that_breaks_the_rules() -> Result<()> {
    let bed = Bed::new()?;
    let server = keeper(&bed)?;
    let told = hostile_common::attack(&bed.net, &["field", SERVER, "head-far"])?;
    ensure!(told == "head-far: reset\n", "{told}");
    says(server.pid(), "peer-broke-rules")?;
    ensure!(counter(server.pid(), "hostile_resets")? == 1);
    Ok(())
}
