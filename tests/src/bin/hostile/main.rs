//! A peer that breaks the rules: it speaks the rendezvous of libsmcr without the library, and then
//! does what the library never would. Run by tests/hostile_*.rs; never by hand.
//!
//!   hostile MODE ADDRESS:PORT [ARGUMENTS]
//!
//! Exit 0: the other end did what it has to. Everything waits with a deadline. HOSTILE_AS in the environment makes it another
//! user's (`who`).

mod attacks;
mod claims;
mod diag;
mod held;
mod hoard;
mod link;
mod offers;
mod region;
mod third;
mod wakes;
mod who;

use anyhow::{Context, Result, bail};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let mode = args.get(1).context("mode")?.as_str();
    let rest = &args[3.min(args.len())..];
    let to = args.get(2).context("address")?;
    who::become_it()?;
    match mode {
        "honest" => attacks::honest(to.parse()?),
        "field" => attacks::field(to.parse()?, rest),
        "fuzz" => attacks::fuzz(to.parse()?, rest),
        "claim" => claims::claim(to.parse()?, rest),
        "stall" => attacks::stall(to.parse()?),
        "keep" => attacks::keep(to.parse()?),
        "offer" => offers::run(to.parse()?, rest),
        "hold" => held::hold(to.parse()?, rest),
        "hoard" => hoard::hoard(to.parse()?, rest),
        "foreign" => third::foreign(to.parse()?, rest),
        "relay" => third::relay(to.parse()?, rest),
        "silent" => third::silent(to.parse()?, rest),
        "spoil" => wakes::spoil(to.parse()?, rest),
        "asleep" => wakes::asleep(to.parse()?, rest),
        "elsewhere" => third::elsewhere(to.parse()?),
        "squat" => third::squat(to.parse()?, rest),
        _ => bail!("unknown mode {mode}"),
    }
}
