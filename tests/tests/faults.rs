//! Faults inside the library (`preload/src/fault.rs`): delays, failing memory, messages, descriptors and
//! doorbells at random, and death at each step of the protocols. Whatever happens inside, the streams are
//! whole; and when an end dies, the other one sees what TCP would have shown.
//! `SMCR_TEST_SEED` repeats a run, `SMCR_FAULT_ROUNDS` makes it longer.

mod faults_back;
mod faults_deaths;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use faults_deaths::{PATIENCE, dies, way_to};
use smcr_tests::dice::{self, Dice};
use smcr_tests::fired::{self, Event, Fired, STEPS};
use smcr_tests::library;
use smcr_tests::mill::{MODES, Mill, Plan, Who};
use smcr_tests::net::Net;
use smcr_tests::page::Totals;
use smcr_tests::process::{Load, Program};
use smcr_tests::slow::MARK;
use smcr_tests::twice::compile_with;
use tempfile::TempDir;

const LINES: usize = 8;
/// Steps at which a process can die: the first ones.
const DEADLY: usize = 21;

fn rounds() -> u64 {
    std::env::var("SMCR_FAULT_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3)
}

fn seeded(test: impl FnOnce(&mut Dice) -> Result<()>) -> Result<()> {
    let seed = dice::seed();
    println!("SMCR_TEST_SEED={seed}");
    test(&mut Dice::new(seed)).with_context(|| format!("SMCR_TEST_SEED={seed}"))
}

/// A mill of the build with faults; `of`: whose faults these are, and are counted.
fn plan(dice: &mut Dice, of: Option<Who>, faults: String, fired: &Fired) -> Result<Plan> {
    let lib = library::with_faults()?.to_str().context("path")?.to_string();
    Ok(Plan {
        client: (Load::Library, dice.pick(&MODES).to_string()),
        server: (Load::Library, dice.pick(&MODES).to_string()),
        lines: LINES,
        seed: dice.roll(1_000_000),
        env: vec![
            (None, "LD_PRELOAD".into(), lib),
            (of, "SMCR_FAULTS".into(), faults),
            (of, fired::VARIABLE.into(), fired.path().to_str().context("path")?.into()),
        ],
    })
}

const CERTAIN: u64 = 100_000;

/// `delay` and `fail`: chances in [`CERTAIN`] at each step.
fn go_on(delay: u64, fail: u64) -> Result<()> {
    go_on_between(false, delay, fail)
}

/// Every set that sleeps is lenient: its rings are kept.
const LENIENT: (&str, &str) = ("SMCR_LENIENT", "1");

/// `strangers`: each end takes the other for another user's.
fn go_on_between(strangers: bool, delay: u64, fail: u64) -> Result<()> {
    seeded(|dice| {
        let (fired, mut totals) = (Fired::new()?, Totals::default());
        for _ in 0..rounds() {
            let faults = format!("{},{delay},{fail}", dice.roll(1 << 40));
            let mut plan = plan(dice, None, faults.clone(), &fired)?;
            if dice.roll(3) == 0 {
                plan.env.push((None, LENIENT.0.into(), LENIENT.1.into()));
            }
            if strangers {
                plan.env.push((None, "SMCR_STRANGERS".into(), "1".into()));
            }
            let what = format!("{plan:?}");
            let net = Net::new()?;
            let mut mill = Mill::new(&net, plan)?;
            for _ in 0..2 {
                mill.begin()?;
                mill.await_moved(300_000 + dice.roll(2_000_000)).with_context(|| what.clone())?;
                std::thread::sleep(Duration::from_millis(dice.roll(200)));
                mill.end().with_context(|| what.clone())?;
            }
            println!("{} bytes with faults {faults}", mill.moved()?);
            totals += mill.totals(Who::Client)?;
        }
        println!("{}\n{}\n{}", fired.show(Event::Passed)?, fired.show(Event::Late)?, fired.show(Event::Failed)?);
        ensure!(delay == 0 || fired.sum(Event::Late)? > 0, "{MARK}nothing was late");
        ensure!(fail == 0 || fired.sum(Event::Failed)? > 0, "{MARK}nothing failed");
        if fail < CERTAIN {
            totals.ensure_in_memory("lines", 2, 100_000)?;
        } else {
            totals.ensure_on_tcp("all fails")?;
        }
        if strangers {
            let stranger = STEPS.len() - 1;
            fired.ensure(stranger, Event::Passed)?;
        }
        Ok(())
    })
}

#[test]
fn late() -> Result<()> {
    go_on(300, 0)
}

#[test]
fn failing() -> Result<()> {
    go_on(0, 5_000)
}

#[test]
fn late_and_failing() -> Result<()> {
    go_on(100, 20_000)
}

/// Both ends wake each other by what peers of other users have.
#[test]
fn between_users() -> Result<()> {
    go_on_between(true, 0, 0)?;
    go_on_between(true, 100, 5_000)
}

/// All memory, all messages, all descriptors, all bells: plain TCP.
#[test]
fn everything_fails() -> Result<()> {
    go_on(0, CERTAIN)
}

/// `case` of a program, in which each pass of `step` takes `ms`.
fn met(program: &str, case: &str, step: u32, ms: u32) -> Result<()> {
    met_with(program, &[case], step, ms, &[])
}

/// The same, with more in its environment.
fn met_with(program: &str, args: &[&str], step: u32, ms: u32, more: &[(&str, &str)]) -> Result<()> {
    let hold = format!("{step},{ms}");
    let fired = met_once(program, args, &[more, &[("SMCR_HOLD", &hold[..])]].concat())?;
    println!("{}", fired.show(Event::Held)?);
    fired.ensure(step as usize, Event::Held)
}

/// A program that finds its own faults, with this in its environment.
fn met_once(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<Fired> {
    let (net, fired) = (Net::new()?, Fired::new()?);
    let source = format!("{program}.c");
    let program = compile_with("cc", program, &[&source], &["-O1", "-g", "-pthread"])?;
    let mut program =
        Program::new(&net, Load::Library, program).args(args).env("LD_PRELOAD", library::with_faults()?).env(fired::VARIABLE, fired.path());
    for (name, value) in env {
        program = program.env(name, value);
    }
    let ended = program.run()?;
    ensure!(ended.status.success(), "{ended}");
    println!("{}", ended.out.trim());
    Ok(fired)
}

/// A thread takes an offer for a connection while another one closes it.
#[test]
fn closed_while_its_offer_is_taken() -> Result<()> {
    const REGION_ADOPTED: u32 = 2;
    met("races", "taken", REGION_ADOPTED, 60)
}

/// The same, where that takes longer than a close waits for it.
#[test]
fn closed_while_its_offer_is_taken_for_long() -> Result<()> {
    const REGION_ADOPTED: u32 = 2;
    met("races", "taken", REGION_ADOPTED, 700)
}

/// A thread makes memory for a connection while another one closes it.
#[test]
fn closed_while_its_memory_is_made() -> Result<()> {
    const REGION_MADE: u32 = 0;
    met("meets", "step", REGION_MADE, 1500)
}

/// A process says that it holds a connection no more, and the last one that does closes it.
#[test]
fn closed_by_relatives_at_once() -> Result<()> {
    const LEFT: u32 = 38;
    met("meets", "parted", LEFT, 400)
}

/// A thread comes to wait in an epoll set that another one is about to close.
#[test]
fn waited_in_while_it_is_closed() -> Result<()> {
    const UNVISITED: u32 = 39;
    met("meets", "unvisited", UNVISITED, 400)
}

/// A connection is closed when a thread has found nothing in it, and is about to wait.
#[test]
fn closed_before_a_wait() -> Result<()> {
    met("meets", "found", FOUND_EMPTY, 600)
}

/// The accepting side sends much and closes, or shuts down both ways at once or one after the other, when the connecting one has marked
/// its first switch and its proof is still to come.
#[test]
fn closed_before_the_proof() -> Result<()> {
    const SWITCH_MARKED: u32 = 5;
    ["close", "shutdown", "halves"].iter().try_for_each(|how| met_with("farewell", &[how], SWITCH_MARKED, 60, &[("SMCR_SWITCH_OPS", "1")]))
}

/// A server exits, or becomes another program, and its peer is drained, and asks it for its part, when it has looked for the last time.
#[test]
fn drained_behind_the_last_look() -> Result<()> {
    const END_MARKED: u32 = 20;
    let (dir, smcrctl) = (TempDir::new()?, library::smcrctl()?);
    let home = dir.path().display().to_string();
    let drain = format!("env -u LD_PRELOAD {} drain all --user --no-wait", smcrctl.display());
    let env = ["XDG_RUNTIME_DIR", "HOME", "XDG_CONFIG_HOME"].map(|name| (name, home.as_str()));
    let env = [&env[..], &[("SMCR_SWITCH_OPS", "1")]].concat();
    ["exit", "exec"].iter().try_for_each(|how| met_with("last_look", &[how, &drain], END_MARKED, 600, &env))
}

/// A program becomes another one (execl) while a thread of it, or its peer, is in the middle of a move to memory or back: the marks and
/// the proof of one to memory, what follows it, the marks of the way back.
#[test]
fn becomes_another_program_meanwhile() -> Result<()> {
    const STEPS: [u32; 6] = [5, 6, 8, 16, 17, 18];
    STEPS.iter().try_for_each(|step| met_with("meanwhile", &["talk"], *step, 300, &[("SMCR_SWITCH_OPS", "8")]))
}

/// A server becomes another program in a handler of the thread that has just taken the proof, or followed.
#[test]
fn becomes_another_program_in_a_handler() -> Result<()> {
    const STEPS: [u32; 2] = [7, 8];
    STEPS.iter().try_for_each(|step| met_with("meanwhile", &["handler"], *step, 300, &[("SMCR_SWITCH_OPS", "8")]))
}

/// Bytes come when an edge-triggered wait has just looked and found nothing.
#[test]
fn bytes_behind_a_look_that_found_nothing() -> Result<()> {
    const LOOKED: u32 = 26;
    met("races", "edge", LOOKED, 20)
}

/// The last bytes and the end behind them come when a reader has just found the ring empty.
#[test]
fn the_end_behind_a_look_that_found_nothing() -> Result<()> {
    met("races", "end", FOUND_EMPTY, 20)
}

const FOUND_EMPTY: u32 = 37;

/// A thread receives, by a limit that it has from the listener, when another one has just taken an offer for its connection.
#[test]
fn a_limit_of_the_listener() -> Result<()> {
    const CAREFUL: u32 = 40;
    met("races", "limit", CAREFUL, 400)
}

/// A reader is about to sleep beside another one, which brings the connection to memory and reads no more.
#[test]
fn beside_one_that_brings_memory() -> Result<()> {
    const OUTSIDE: u32 = 41;
    met("races", "beside", OUTSIDE, 600)
}

/// A doorbell for bytes that were taken meanwhile would lie unread where its reader dies, and make a reset of the end, which destroys
/// what that has sent through TCP.
#[test]
fn killed_behind_a_late_doorbell() -> Result<()> {
    const PUBLISHED: u32 = 11;
    met("last_bells", "late", PUBLISHED, 20)
}

const GIVEN_BACK: u32 = 15;

/// The same where the process ends by `_exit` while a thread is in the call that takes the bytes.
#[test]
fn ended_with_a_doorbell_unread() -> Result<()> {
    met_with("last_bells", &["exits"], GIVEN_BACK, 150, &[("SMCR_SWITCH_OPS", "2")])
}

/// In a handler above that call.
#[test]
fn ended_in_a_handler_with_a_doorbell_unread() -> Result<()> {
    met_with("last_bells", &["handler"], GIVEN_BACK, 150, &[("SMCR_SWITCH_OPS", "2")])
}

const BELL: u32 = 24;

/// The program takes the number under which a thread is about to ring.
#[test]
fn taken_while_it_is_rung() -> Result<()> {
    met("reuse", "moved", BELL, 400)
}

/// So does a handler of the thread itself, which can't wait for what it lies on.
#[test]
fn taken_by_a_handler_of_who_rings() -> Result<()> {
    met("reuse", "handler", BELL, 400)
}

/// The same where another thread of the program is rung.
#[test]
fn taken_while_an_own_thread_is_rung() -> Result<()> {
    met("reuse", "own_moved", BELL, 400)
}

/// A set is closed while one of its threads is about to wake another one, and the program opens files.
#[test]
fn closed_while_an_own_thread_is_rung() -> Result<()> {
    met("reuse", "own_closed", BELL, 700)
}

/// What a thread is about to ring is replaced, and the program opens files.
#[test]
fn replaced_while_it_is_rung() -> Result<()> {
    met("reuse", "closed", BELL, 700)
}

/// Messages to a set whose rings are kept, whatever their sender does next.
#[test]
fn with_rings_kept() -> Result<()> {
    const KEPT: usize = 43;
    for case in ["waits", "away", "threads", "forks", "execs", "dies"] {
        let fired = met_once("kept", &[case], &[LENIENT]).context(case)?;
        fired.ensure(KEPT, Event::Passed).context(case)?;
    }
    Ok(())
}

const COPIED: u32 = 10;
const TAKEN: u32 = 14;

/// A process dies, a thread jumps away, a handler calls again while a direction's lock is held.
#[test]
fn a_sender_that_holds_its_lock() -> Result<()> {
    for case in ["killed", "jumped", "again"] {
        met("locks", case, COPIED, 300).context(case)?;
    }
    Ok(())
}

#[test]
fn a_receiver_that_holds_its_lock() -> Result<()> {
    for case in ["killed_in_recv", "jumped_in_recv", "again_in_recv"] {
        met("locks", case, TAKEN, 300).context(case)?;
    }
    Ok(())
}

/// A thread leaves a call with a lock, and other threads of its program go on without it.
#[test]
fn a_sender_that_never_comes_back() -> Result<()> {
    for case in ["jumps", "exits", "is_cancelled", "is_cancelled_above", "deeper"] {
        met("leaves", case, COPIED, 300).context(case)?;
    }
    Ok(())
}

#[test]
fn a_receiver_that_never_comes_back() -> Result<()> {
    for case in ["jumps_in_recv", "exits_in_recv", "is_cancelled_in_recv", "is_cancelled_above_in_recv"] {
        met("leaves", case, TAKEN, 300).context(case)?;
    }
    Ok(())
}

/// A jump, or the end of its thread, leaves a sender that has published, and not told who sleeps.
#[test]
fn a_sender_that_leaves_before_it_rings() -> Result<()> {
    const PUBLISHED: u32 = 11;
    const UNCOUNTED: u32 = 13;
    met("leaves", "rung", PUBLISHED, 300)?;
    met("leaves", "exits_unheard", PUBLISHED, 300).context("the end of a thread")?;
    met("leaves", "rung_byte", PUBLISHED, 300).context("a byte")?;
    met("leaves", "rung_byte", UNCOUNTED, 300).context("a byte that is sent and not counted")
}

/// Each end dies at each step, the first time and later.
#[test]
fn death_at_each_step() -> Result<()> {
    seeded(|dice| {
        let mut died = Vec::new();
        for (step, name) in STEPS.iter().enumerate().take(DEADLY) {
            if *name == "RequestTaken" {
                continue; // no mill hands a connection over: faults_back
            }
            let (ends, ..) = way_to(step);
            let one = [*dice.pick(ends)];
            for who in if rounds() > 3 { ends } else { &one[..] } {
                // Those of the handshake are passed once for each line.
                let nth = 2 + dice.roll(if step < 8 { LINES as u64 - 3 } else { 29 });
                let later = dice.roll(2) == 0 && *name != "EndMarked";
                // A later pass may not come.
                if later && dies(dice, step, *who, nth, Duration::from_millis(300))? {
                    died.push(format!("{name} later"));
                } else {
                    let time = if *name == "EndMarked" { Duration::from_secs(1) } else { PATIENCE };
                    ensure!(dies(dice, step, *who, 1, time)?, "{MARK}{who:?} has never passed {name}");
                    died.push(name.to_string());
                }
            }
        }
        println!("{} ends died: {}", died.len(), died.join(", "));
        Ok(())
    })
}

/// The library for everybody has nothing of this.
#[test]
fn none_in_the_release() -> Result<()> {
    /// In the symbols of its functions.
    const NAME: &[u8] = b"4smcr5fault";
    let has = |path: &std::path::Path| -> Result<bool> { Ok(std::fs::read(path)?.windows(NAME.len()).any(|w| w == NAME)) };
    ensure!(!has(library::path())?, "the release library has them");
    ensure!(has(library::with_faults()?)?, "the check looks for the wrong thing");
    Ok(())
}
