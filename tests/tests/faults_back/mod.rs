//! Faults on the way back to TCP, in cases of `twice`: a sender that is held there while its peer dies or jumps, and one that dies
//! when its peer has asked for its bytes back. Part of the tests of faults.rs.

use std::cell::Cell;

use anyhow::{Context, Result, ensure};
use smcr_tests::fired::{self, Event, Fired};
use smcr_tests::library;
use smcr_tests::twice::{self, Ends};

/// The peer dies, with bytes unread in its ring, when a sender has left the ring and is about to send through TCP: whose kernel sees
/// an end first, and then a reset that the sender itself brought about.
#[test]
fn death_behind_a_way_back() -> Result<()> {
    const BACK_MARKED: u32 = 17;
    let cases = twice::cases("death.c")?.into_iter().filter(|c| c.name.starts_with("survivor_in_send"));
    let mut n = 0;
    for case in cases {
        held_on_the_way_back(&case, Some("262144,1"), BACK_MARKED, 500)?;
        n += 1;
    }
    ensure!(n == 4, "{n} cases");
    Ok(())
}

/// A handler would leave a sender by a jump when its peer has called it back to TCP, and what it owes is noted, but not the way back.
#[test]
fn a_jump_on_the_way_back() -> Result<()> {
    let cases = twice::cases("leaving.c")?;
    let case = cases.iter().find(|c| c.name == "called_back").context("the case")?;
    const GATE_CLOSED: u32 = 16;
    held_on_the_way_back(case, None, GATE_CLOSED, 300)
}

/// `case`, in which `step` of each way back takes so long, ends as natively.
fn held_on_the_way_back(case: &twice::Case, flip: Option<&str>, step: u32, ms: u32) -> Result<()> {
    let lib = library::with_faults()?;
    let native = case.run(Ends::Neither)?;
    case.ensure_sound(&native)?;
    let fired = Fired::new()?;
    let got = case.run_with(Ends::Both, &|program| {
        let program = program.env(fired::VARIABLE, fired.path());
        let program = program.env("LD_PRELOAD", lib).env("SMCR_HOLD", format!("{step},{ms}"));
        match flip {
            Some(flip) => program.env("SMCR_FLIP", flip),
            None => program,
        }
    })?;
    ensure!(got.transcript == native.transcript, "{}\n---\n{}{}", native.transcript, got.transcript, got.notes);
    fired.ensure(step as usize, Event::Held)
}

/// The sender dies when its peer, which becomes another program, starts one or passes the connection on, has asked for what lies unread, and
/// the request is taken: it can't be taken back any more, and nothing is sent again. Who has it next has all of that with the library, and
/// is shown a reset without.
#[test]
fn dies_when_asked_for_its_bytes() -> Result<()> {
    const REQUEST_TAKEN: usize = 19;
    let lib = library::with_faults()?;
    let whole = "a: stream 5: 716800 bytes, whole\n";
    let each = [
        ("unread.c", "ahead_with", whole, "a: exit 0\nb: signal 9\n"),
        ("unread.c", "ahead_inherited", whole, "a: exit 0\nb: signal 9\n"),
        ("unread.c", "ahead_without", "a: DIED at get: ECONNRESET\n", "a: exit 99\nb: signal 9\n"),
        ("handover.c", "pass_unread", "a: 20000 whole 1\n", "a: exit 0\nb: signal 9\n"),
        ("handover.c", "exec_unread", "a: DIED at get: ECONNRESET\n", "a: exit 99\nb: signal 9\n"),
    ];
    for (program, name, seen, end) in each {
        let cases = twice::cases(program)?;
        let case = cases.iter().find(|c| c.name == name).context("the case")?;
        let (fired, ends) = (Fired::new()?, Cell::new(0));
        let got = case.run_with(Ends::Both, &|program| {
            let program = program.env("LD_PRELOAD", lib).env("SMCR_FLIP", "0");
            // The second end that starts is the connecting one, which sends.
            match ends.replace(ends.get() + 1) {
                1 => program.env(fired::VARIABLE, fired.path()).env("SMCR_FAULTS", format!("1,0,0,{REQUEST_TAKEN},1")),
                _ => program,
            }
        })?;
        let what = || format!("{name}:\n{}{}", got.transcript, got.notes);
        ensure!(fired.at(REQUEST_TAKEN, Event::Died)? == 1, "it did not die there: {}\n{}", fired.show(Event::Passed)?, what());
        ensure!(got.transcript.contains("b: signal 9"), "{}", what());
        ensure!(got.transcript.contains(seen), "{}", what());
        ensure!(got.transcript.ends_with(end), "{}", what());
    }
    Ok(())
}
