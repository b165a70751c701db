//! Owns: how much of a workload's payload stayed off TCP, seen from outside: bytes on `lo`, with
//! headers, acknowledgements, wake-ups and everything before the switch.

use anyhow::{Result, ensure};

use crate::net::{Lo, Net};
use crate::process::{Load, flipping};
use crate::slow::only_slow;

/// What a workload moved and what of it was seen on `lo`.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    pub payload: u64,
    pub lo: Lo,
}

impl Share {
    /// Bytes on `lo` for each hundred bytes of payload.
    pub fn percent(&self) -> f64 {
        100.0 * self.lo.bytes as f64 / self.payload.max(1) as f64
    }

    /// At least 95 % of the payload stayed off TCP.
    pub fn ensure_off_tcp(&self, what: &str) -> Result<()> {
        ensure!(self.payload >= 1_000_000, "{what}: {} bytes prove nothing", self.payload);
        if flipping() {
            return Ok(());
        }
        if self.lo.bytes * 20 > self.payload {
            return Err(only_slow(format!(
                "{what}: not accelerated: {} bytes in {} packets on lo for {} bytes of payload ({:.1} %)",
                self.lo.bytes,
                self.lo.packets,
                self.payload,
                self.percent()
            )));
        }
        Ok(())
    }

    /// All of the payload crossed `lo`: the measure itself is right.
    pub fn ensure_on_tcp(&self, what: &str) -> Result<()> {
        ensure!(self.lo.bytes >= self.payload, "{what}: {} bytes on lo for {} bytes of payload", self.lo.bytes, self.payload);
        Ok(())
    }
}

/// Runs a workload, which returns the bytes of payload it moved, and measures.
pub fn measure(net: &Net, workload: impl FnOnce() -> Result<u64>) -> Result<Share> {
    let before = net.lo()?;
    let payload = workload()?;
    Ok(Share { payload, lo: net.lo()? - before })
}

/// Runs a workload natively and under the library, each in a namespace of its own, and asserts
/// that natively all of it crossed `lo`, and that under the library 95 % of it did not. Where an end
/// is not let run while the other one sends through TCP that may fail once; it is told, and not twice.
pub fn lo_share(what: &str, workload: impl Fn(&Net, Load) -> Result<u64>) -> Result<()> {
    compare(what, Load::Library, workload)
}

/// The same with the library's own settings.
pub fn lo_share_by_default(what: &str, workload: impl Fn(&Net, Load) -> Result<u64>) -> Result<()> {
    compare(&format!("{what}, by default"), Load::Defaults, workload)
}

fn compare(what: &str, library: Load, workload: impl Fn(&Net, Load) -> Result<u64>) -> Result<()> {
    let run = |load: Load| -> Result<Share> {
        let net = Net::new()?;
        let share = measure(&net, || workload(&net, load))?;
        println!("{what}, {load:?}: {} bytes of payload, {:.2} % on lo", share.payload, share.percent());
        Ok(share)
    };
    run(Load::Native)?.ensure_on_tcp(what)?;
    if let Err(e) = run(library)?.ensure_off_tcp(what) {
        println!("{e:#}: attempt 2");
        run(library)?.ensure_off_tcp(what)?;
    }
    Ok(())
}
