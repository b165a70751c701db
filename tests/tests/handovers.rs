//! A connection that is given to another program while its peer is stopped: the call waits as long as it says, and
//! the log names whom it waited for. What becomes of the bytes is a case of `twice`.

use anyhow::{Context, Result, ensure};
use smcr_tests::twice::{self, Ends};

#[test]
fn a_stopped_peer_is_named() -> Result<()> {
    let cases = twice::cases("passing")?;
    let case = cases.iter().find(|c| c.name == "stopped_peer").context("no such case")?;
    let native = case.run(Ends::Neither)?;
    // A peer that has gone to TCP by itself has nothing to return.
    let got = case.run_with(Ends::Both, &|p| p.env("SMCR_LOG", "smcr::switch=warn").env("SMCR_FLIP", "0"))?;
    ensure!(got.transcript == native.transcript, "{}\n{}", got.transcript, got.notes);
    // The peer's process is the one that the case stops: it says its number.
    let peer = got.notes.lines().find_map(|l| l.strip_prefix("b: stopped ")).context("no number")?;
    let line = got.notes.lines().find(|l| l.contains("did not return its direction in time")).context(got.notes.clone())?;
    ensure!(line.ends_with(&format!("pid={peer}")), "{line}, not {peer}");
    Ok(())
}
