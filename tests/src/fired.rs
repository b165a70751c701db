//! Owns: what the build with faults did (`preload/src/fault.rs`): how often each step was passed, and the faults that fired
//! there, in a file that its processes map, so that it outlives those that were killed.

use std::path::Path;

use anyhow::Result;
use tempfile::NamedTempFile;

use crate::slow::only_slow;

/// The variable that names the file to the library.
pub const VARIABLE: &str = "SMCR_FAULT_COUNTS";

/// The steps, in the order of `fault::Step`.
pub const STEPS: [&str; 45] = [
    "RegionMade",
    "OfferSent",
    "RegionAdopted",
    "NonceOnSocket",
    "Verified",
    "SwitchMarked",
    "ProofSent",
    "ProofTaken",
    "FollowedToMemory",
    "HalfCopied",
    "Copied",
    "Published",
    "Ringing",
    "Uncounted",
    "Taken",
    "GivenBack",
    "GateClosed",
    "BackMarked",
    "FollowedToTcp",
    "RequestTaken",
    "EndMarked",
    "Memory",
    "Message",
    "Descriptor",
    "Bell",
    "Byte",
    "Looked",
    "DeviceOpened",
    "Registered",
    "QueuePairMade",
    "QueuePairMoved",
    "ReceivePosted",
    "Posted",
    "SendCompleted",
    "Arrived",
    "ClcSent",
    "ClcTaken",
    "FoundEmpty",
    "Left",
    "Unvisited",
    "Careful",
    "Outside",
    "Posting",
    "Kept",
    "Stranger",
];

/// What happened there, in the order of `fault::Event`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Passed,
    Held,
    Late,
    Failed,
    Died,
}

const ROOM: (usize, usize) = (64, 8);

/// The counts of some processes.
pub struct Fired(NamedTempFile);

impl Fired {
    pub fn new() -> Result<Fired> {
        let file = NamedTempFile::new()?;
        file.as_file().set_len((ROOM.0 * ROOM.1 * 8) as u64)?;
        Ok(Fired(file))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// How often that happened at a step until now.
    pub fn at(&self, step: usize, event: Event) -> Result<u64> {
        let all = std::fs::read(self.path())?;
        let at = 8 * (step * ROOM.1 + event as usize);
        Ok(all.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes))
    }

    /// How often it happened at all steps.
    pub fn sum(&self, event: Event) -> Result<u64> {
        (0..STEPS.len()).map(|step| self.at(step, event)).sum()
    }

    /// The steps at which it happened, and how often.
    pub fn show(&self, event: Event) -> Result<String> {
        let mut text = format!("{event:?}:");
        for (step, name) in STEPS.iter().enumerate() {
            match self.at(step, event)? {
                0 => {}
                n => text += &format!(" {name} {n}"),
            }
        }
        Ok(text)
    }

    /// It happened at this step.
    pub fn ensure(&self, step: usize, event: Event) -> Result<()> {
        if self.at(step, event)? == 0 {
            return Err(only_slow(format!("{} was never met: {}", STEPS[step], self.show(Event::Passed)?)));
        }
        Ok(())
    }
}
