//! The soak's streams: mills whose ends die, pause, are drained and switched off and on, some of them of the build with faults. Called
//! by soak.rs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use smcr_tests::census::{self, Census};
use smcr_tests::dice::Dice;
use smcr_tests::fired::{self, Fired};
use smcr_tests::library;
use smcr_tests::mill::{Death, MODES, Mill, Plan, Who};
use smcr_tests::net::Net;
use smcr_tests::process::Load;

use super::{Control, Figures};

const LINES: usize = 8;
/// Chances of a delay and of a failure in 100,000 at each step.
const LATE: u64 = 100;
const FAILS: u64 = 5_000;

/// The two ends of a mill; `fired`: of the build with faults, which come at random.
fn plan(dice: &mut Dice, control: &Control, fired: Option<&Fired>) -> Result<Plan> {
    let mut env: Vec<_> = control.env().map(|(name, value)| (None, name, value)).to_vec();
    if let Some(fired) = fired {
        let text = |path: &Path| Ok::<_, Error>(path.to_str().context("path")?.to_string());
        env.push((None, "LD_PRELOAD".into(), text(library::with_faults()?)?));
        env.push((None, "SMCR_FAULTS".into(), format!("{},{LATE},{FAILS}", dice.roll(1 << 40))));
        env.push((None, fired::VARIABLE.into(), text(fired.path())?));
    }
    Ok(Plan {
        client: (Load::Library, dice.pick(&MODES).to_string()),
        server: (Load::Library, dice.pick(&MODES).to_string()),
        lines: LINES,
        seed: dice.roll(1_000_000),
        env,
    })
}

/// Some rounds of one mill; the survivor's holdings are compared. About one mill in four has faults inside. Its ends die between its
/// rounds alone: what a delay between two steps makes of a death beside it is a known difference (docs/faults.md).
pub fn streams(dice: &mut Dice, control: &Control, fired: &Fired, figures: &mut Figures) -> Result<()> {
    let net = Net::new()?;
    let fired = (dice.roll(4) == 0).then_some(fired);
    figures.faulty += u64::from(fired.is_some());
    let victim = *dice.pick(&[Who::Client, Who::Server]);
    let survivor = victim.other();
    let plan = plan(dice, control, fired)?;
    let what = format!("{victim:?} of {plan:?}");
    let mut mill = Mill::new(&net, plan)?;
    // The survivor as it is when nobody is at the other end.
    let alone = |mill: &mut Mill| -> Result<Census> {
        mill.begin()?;
        mill.await_moved(1_000_000)?;
        mill.await_in_memory(200_000)?;
        mill.end()?;
        mill.die(victim, Death::Kill)?;
        Census::of(mill.pid(survivor)?)
    };
    // A reader and a writer of each line.
    let before = alone(&mut mill).with_context(|| what.clone())?.with_eventfds_of_a_peer(2 * LINES);
    figures.deaths[0] += 1;
    for _ in 0..16 {
        mill.begin()?;
        if dice.roll(4) > 0 {
            mill.await_moved(dice.roll(2_000_000)).with_context(|| what.clone())?;
        }
        if dice.roll(8) == 0 {
            mill.pause(*dice.pick(&[victim, survivor]), Duration::from_millis(dice.roll(50))).with_context(|| what.clone())?;
            figures.pauses += 1;
        }
        control.disturb(&net, dice, figures)?;
        let longest = *dice.pick(&[1_000, 20_000, 300_000]);
        std::thread::sleep(Duration::from_micros(dice.roll(longest)));
        if dice.roll(5) == 0 || fired.is_some() {
            figures.bytes += mill.moved()?;
            mill.end().with_context(|| what.clone())?;
        } else {
            mill.die(victim, *dice.pick(&Death::ALL)).with_context(|| what.clone())?;
            figures.deaths[0] += 1;
            figures.bytes += mill.moved()?;
        }
    }
    // The descriptors of one dead peer may stay until the next one comes; a leak stays for ever.
    let mut leaks = Vec::new();
    for _ in 0..3 {
        let after = alone(&mut mill).with_context(|| what.clone())?;
        figures.deaths[0] += 1;
        leaks = after.leaked_since(&before, 3, 4096);
        if leaks.is_empty() {
            break;
        }
    }
    mill.ensure_in_memory(survivor, 4, 200_000).with_context(|| what.clone())?;
    figures.streams += mill.totals(survivor)?;
    figures.leaks.extend(leaks.iter().map(|l| format!("{what}: {l}")));
    drop(mill);
    census::await_no_names(&net)
}
