//! An end of a mill that dies at a step of the library. Part of the tests of faults.rs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use smcr_tests::dice::Dice;
use smcr_tests::fired::{Event, Fired, STEPS};
use smcr_tests::mill::{Mill, Who};
use smcr_tests::net::Net;

use super::plan;

/// The ends that pass a step in a mill, and what brings them there: a variable, and how the peer waits.
pub fn way_to(step: usize) -> (&'static [Who], Option<(&'static str, &'static str)>, Option<&'static str>) {
    const BOTH: &[Who] = &[Who::Client, Who::Server];
    match STEPS[step] {
        "RegionMade" | "OfferSent" | "Verified" => (&[Who::Client], None, None),
        "RegionAdopted" | "NonceOnSocket" | "ProofTaken" => (&[Who::Server], None, None),
        "Ringing" | "Uncounted" => (BOTH, None, Some("raw")),
        "GateClosed" | "BackMarked" | "FollowedToTcp" => (BOTH, Some(("SMCR_FLIP", "65536,1")), None),
        _ => (BOTH, None, None),
    }
}

/// For an end that is to die at its first pass.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One end is to die at a pass of a step; whether it did within that time.
pub fn dies(dice: &mut Dice, step: usize, who: Who, nth: u64, time: Duration) -> Result<bool> {
    let (_, variable, peer) = way_to(step);
    let fired = Fired::new()?;
    let faults = format!("{},0,0,{step},{nth}", dice.roll(1 << 40));
    let mut plan = plan(dice, Some(who), faults, &fired)?;
    plan.env.extend(variable.map(|(name, value)| (None, name.into(), value.into())));
    if let Some(mode) = peer {
        let end = if who == Who::Client { &mut plan.server } else { &mut plan.client };
        end.1 = mode.into();
    }
    let what = format!("{} ({step}), pass {nth} of {who:?}: {plan:?}", STEPS[step]);
    let net = Net::new()?;
    let mut mill = Mill::new(&net, plan)?;
    mill.begin()?;
    let mut died = mill.await_death(who, time).with_context(|| what.clone())?;
    if !died && STEPS[step] == "EndMarked" {
        mill.stop()?;
        died = mill.await_death(who, PATIENCE).with_context(|| what.clone())?;
    }
    ensure!(!died || fired.at(step, Event::Died)? == 1, "{what}: it died elsewhere");
    if !died {
        println!("{what}: lives; {}", fired.show(Event::Passed)?);
    }
    Ok(died)
}
