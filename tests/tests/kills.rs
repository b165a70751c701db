//! Ends of connections die at random points, in seven ways, in every way of waiting; the survivors see
//! what TCP would have shown, promptly, and hold nothing more than before. The same runs natively, which
//! tests the judge. `SMCR_TEST_SEED` repeats a run, `SMCR_KILL_ROUNDS` makes it longer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use smcr_tests::census::{self, Census, System};
use smcr_tests::dice::{self, Dice};
use smcr_tests::mill::{Death, MODES, Mill, Plan, Who, proofs_unread};
use smcr_tests::net::Net;
use smcr_tests::process::Load;

const LINES: usize = 8;
/// So many bytes are to go through memory before the first death and before the last.
const IN_MEMORY: u64 = 500_000;

/// Rounds of each test: a few seconds.
fn rounds() -> u64 {
    std::env::var("SMCR_KILL_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(4)
}

/// One end dies again and again; what the other one holds is the same before and after.
fn survive(victim: Who, mode: &str, load: Load) -> Result<()> {
    let seed = dice::seed();
    println!("SMCR_TEST_SEED={seed}");
    kill(victim, mode, load, seed).with_context(|| format!("SMCR_TEST_SEED={seed}, {victim:?} of {mode} dies, {load:?}"))
}

fn kill(victim: Who, mode: &str, load: Load, seed: u64) -> Result<()> {
    let mut dice = Dice::new(seed);
    let net = Net::new()?;
    let system = System::now();
    let others = *dice.pick(&MODES);
    let (client, server) = if victim == Who::Client { (others, mode) } else { (mode, others) };
    let plan = Plan { client: (load, client.into()), server: (load, server.into()), lines: LINES, seed, env: Vec::new() };
    let mut mill = Mill::new(&net, plan)?;
    let survivor = victim.other();
    // The survivor as it is when nobody is at the other end, once it has had everything that it makes
    // when that is first needed.
    let alone = |mill: &mut Mill| -> Result<Census> {
        mill.begin()?;
        mill.await_moved(2_000_000)?;
        mill.await_in_memory(IN_MEMORY)?;
        mill.end()?;
        mill.die(victim, Death::Kill)?;
        Census::of(mill.pid(survivor)?)
    };
    let before = alone(&mut mill)?;
    let mut bytes = 0;
    for _ in 0..rounds() {
        mill.begin()?;
        if dice.roll(3) > 0 {
            mill.await_moved(dice.roll(2_000_000))?;
            if dice.roll(2) == 0 {
                mill.await_in_memory(1 + dice.roll(500_000))?;
            }
            if dice.roll(4) == 0 {
                mill.pause(*dice.pick(&[victim, survivor]), Duration::from_millis(dice.roll(20)))?;
            }
        }
        let longest = *dice.pick(&[1_000, 20_000, 300_000]);
        std::thread::sleep(Duration::from_micros(longest / 2 + dice.roll(longest)));
        mill.die(victim, *dice.pick(&Death::ALL)).with_context(|| format!("{client} calls {server}"))?;
        bytes += mill.moved()?;
    }
    let mut died = rounds() + 1;
    // The descriptors of one dead peer may stay until the next one comes; a leak stays for ever.
    let mut after = before.clone();
    let mut leaks = Vec::new();
    for _ in 0..3 {
        after = alone(&mut mill)?;
        died += 1;
        leaks = after.leaked_since(&before, 3, 4096);
        if leaks.is_empty() {
            break;
        }
    }
    println!("{victim:?} dies, {client} and {server}: {died} times, {bytes} bytes; resets for an unread proof so far: {}", proofs_unread());
    mill.ensure_in_memory(survivor, 4, IN_MEMORY)?;
    ensure!(leaks.is_empty(), "the survivor leaks: {leaks:?}\nbefore {before:?}\nafter {after:?}");
    drop(mill);
    census::await_no_names(&net)?;
    system.ensure_same()
}

#[test]
fn clients_of_threads() -> Result<()> {
    survive(Who::Client, "threads", Load::Library)
}

#[test]
fn clients_of_epoll() -> Result<()> {
    survive(Who::Client, "level", Load::Library)
}

#[test]
fn clients_of_epoll_edge() -> Result<()> {
    survive(Who::Client, "edge", Load::Library)
}

#[test]
fn clients_of_an_unseen_loop() -> Result<()> {
    survive(Who::Client, "raw", Load::Library)
}

#[test]
fn clients_of_poll() -> Result<()> {
    survive(Who::Client, "poll", Load::Library)
}

#[test]
fn servers_of_threads() -> Result<()> {
    survive(Who::Server, "threads", Load::Library)
}

#[test]
fn servers_of_epoll() -> Result<()> {
    survive(Who::Server, "level", Load::Library)
}

#[test]
fn servers_of_epoll_edge() -> Result<()> {
    survive(Who::Server, "edge", Load::Library)
}

#[test]
fn servers_of_an_unseen_loop() -> Result<()> {
    survive(Who::Server, "raw", Load::Library)
}

#[test]
fn servers_of_poll() -> Result<()> {
    survive(Who::Server, "poll", Load::Library)
}

/// The judge finds nothing wrong with TCP.
#[test]
fn natively() -> Result<()> {
    for victim in [Who::Client, Who::Server] {
        for mode in MODES {
            survive(victim, mode, Load::Native)?;
        }
    }
    Ok(())
}
