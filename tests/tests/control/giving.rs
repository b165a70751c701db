//! Connections are given to another program while they are drained at both ends, again and again: each stream comes whole.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use smcr_tests::dice::{self, Dice};
use smcr_tests::process::{Ended, Load, Program, flipping};
use smcr_tests::twice::compile_with;

use crate::bed::{Bed, smcrctl};

/// Between two drains: programs move to memory in less. Where a slow machine drains most of them before they have, the next pause is tried.
const PAUSES: [Duration; 3] = [Duration::from_millis(15), Duration::from_millis(60), Duration::from_millis(240)];

fn program() -> Result<PathBuf> {
    compile_with("cc", "giving", &["giving.c"], &["-O1", "-g", "-pthread"])
}

/// Rounds.
fn in_memory(ended: &Ended) -> u32 {
    ended.out.lines().filter(|l| *l == "in memory").count() as u32
}

/// The rounds that were in memory when they were given, of these.
fn given(how: &str, load: Load, rounds: u32, seed: u64, pause: Duration) -> Result<u32> {
    let bed = Bed::enabled()?;
    let program = bed.home(Program::new(&bed.net, load, program()?)).env("SMCR_SWITCH_OPS", "8").args([how, &rounds.to_string(), &seed.to_string()]);
    let ended = std::thread::scope(|scope| {
        let given = scope.spawn(|| program.run());
        while !given.is_finished() {
            bed.ok(&["drain", "all", "--user", "--no-wait"])?;
            std::thread::sleep(pause);
        }
        given.join().expect("no panic")
    })?;
    ensure!(ended.status.success(), "{ended}");
    let in_memory = in_memory(&ended);
    println!("{how}: {in_memory} of {rounds} rounds were in memory when they were given, a drain each {pause:?}");
    Ok(in_memory)
}

/// The sender alone is drained, and its peer gives away what then lies in memory and behind that in TCP.
#[test]
fn what_a_drained_peer_has_left_unread() -> Result<()> {
    ["message", "spawn", "exec"].iter().try_for_each(|how| {
        let bed = Bed::enabled()?;
        let drain = format!("env -u LD_PRELOAD {} drain pid:$PPID --user --no-wait", smcrctl().display());
        let ended = bed.home(Program::new(&bed.net, Load::Library, program()?)).env("SMCR_SWITCH_OPS", "8").args([how, "2", "1", &drain]).run()?;
        ensure!(ended.status.success(), "{ended}");
        ensure!(flipping() || in_memory(&ended) == 2, "{ended}");
        Ok(())
    })
}

/// Nobody drains them; they move between memory and TCP by themselves, each 20,000 bytes on average.
#[test]
fn while_they_flip() -> Result<()> {
    const ROUNDS: u32 = 6;
    let seed = dice::seed();
    println!("SMCR_TEST_SEED={seed}");
    let mut dice = Dice::new(seed);
    ["message", "spawn", "exec"].iter().try_for_each(|how| {
        let bed = Bed::enabled()?;
        let ended = bed
            .home(Program::new(&bed.net, Load::Library, program()?))
            .env("SMCR_SWITCH_OPS", "8")
            .env("SMCR_FLIP", format!("20000,{}", dice.roll(1000)))
            .args([how, &ROUNDS.to_string()[..], &dice.roll(1_000_000).to_string()[..]])
            .run()?;
        ensure!(ended.status.success(), "{ended}");
        println!("{how}: {} of {ROUNDS} rounds were in memory when they were given", in_memory(&ended));
        ensure!(in_memory(&ended) > 0, "{ended}");
        Ok(())
    })
}

fn natively_and_in_memory(how: &str, rounds: u32) -> Result<()> {
    let seed = dice::seed();
    println!("SMCR_TEST_SEED={seed}");
    let seed = Dice::new(seed).roll(1_000_000);
    given(how, Load::Native, 1, seed, PAUSES[0])?;
    for pause in PAUSES {
        if given(how, Load::Library, rounds, seed, pause)? * 4 > rounds || flipping() {
            return Ok(());
        }
    }
    bail!("only slow: {how}: most connections were on TCP when they were given, however seldom they are drained")
}

#[test]
fn by_a_message() -> Result<()> {
    natively_and_in_memory("message", 12)
}

#[test]
fn to_a_program_that_is_started() -> Result<()> {
    natively_and_in_memory("spawn", 20)
}

#[test]
fn by_exec() -> Result<()> {
    natively_and_in_memory("exec", 20)
}
