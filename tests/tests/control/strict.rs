//! `strict`: a silent fallback becomes an error; what somebody has chosen does not.

use std::path::Path;

use anyhow::{Result, ensure};
use smcr_tests::process::{Load, Program};
use smcr_tests::twice::python;

use crate::bed::Bed;

const STRICT: (&str, &str) = ("SMCR_STRICT", "1");

/// Accelerated connections, a peer without the library and a rule are as without it.
#[test]
fn choices_are_no_errors() -> Result<()> {
    let bed = Bed::new()?;
    bed.ok(&["rule", "add", "--user", "use=tcp", "port=7001"])?;
    let _server = bed.server(&[STRICT])?;
    let client = bed.client(&[STRICT])?;
    client.open("a", 7000)?;
    client.moves_to_memory("a")?;
    client.open("b", 7001)?;
    client.stays_on_tcp("b")?;
    let plain = bed.client(&[("LD_PRELOAD", "")])?;
    plain.open("a", 7000)?;
    plain.stays_on_tcp("a")?;
    ensure!(!client.program.so_far().1.contains("strict"), "{:?}", client.program.so_far());
    Ok(())
}

/// No room in memory: without `strict` TCP, with it an error.
#[test]
fn a_fallback_is_an_error() -> Result<()> {
    let bed = Bed::new()?;
    bed.ok(&["set", "--user", "max_memory=0"])?;
    let _server = bed.server(&[("SMCR_MAX_MEMORY", "100")])?;
    let client = bed.client(&[])?;
    client.open("a", 7000)?;
    client.stays_on_tcp("a")?;
    bed.ok(&["set", "--user", "strict=1"])?;
    client.tell("open b 7000")?;
    let answer = client.say("talk b 200 1000")?;
    ensure!(answer == "ECONNRESET", "{answer}");
    client.tell("close b")?;
    let err = client.program.so_far().1;
    let lines: Vec<_> = err.lines().filter(|l| l.starts_with("smcr: strict:")).collect();
    ensure!(lines.len() == 1 && lines[0].contains("max_memory is used up (13)"), "{err}");
    bed.ok(&["set", "--user", "strict=0"])?;
    client.open("c", 7000)?;
    client.stays_on_tcp("c")
}

/// Connections whose peer closes, or gives them to a program, while both ends still agree on memory: each byte comes, and nothing is reset.
#[test]
fn ends_and_programs_are_no_errors() -> Result<()> {
    const ROUNDS: u32 = 300;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("py/strict_ends.py").display().to_string();
    for how in ["closes", "hands"] {
        for (load, strict) in [(Load::Native, "0"), (Load::Library, "0"), (Load::Library, "1")] {
            let bed = Bed::enabled()?;
            let program = Program::new(&bed.net, load, python()?).env("SMCR_STRICT", strict).env("SMCR_SWITCH_OPS", "4");
            let ended = bed.home(program).args([&script, how, &ROUNDS.to_string()]).run()?;
            ensure!(ended.status.success() && !ended.err.contains("strict:"), "{how}, strict={strict}: {ended}");
            let in_memory: u32 = ended.out.trim().parse()?;
            ensure!(if load == Load::Native { in_memory == 0 } else { in_memory * 4 > ROUNDS }, "{how}, strict={strict}: {ended}");
        }
    }
    Ok(())
}
