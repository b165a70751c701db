//! Named profiles: tables of values for a purpose.
//!
//! `smcrctl run --profile` puts one into the environment of a program, `smcrctl set profile=` into
//! a page. A profile changes only what it names.

use super::layer::{Attribute, Layer};
use super::policy::Policy;

/// A named table of values.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// The name that users write.
    pub name: &'static str,
    /// What it is for.
    pub help: &'static str,
    /// The attributes and their texts, as a user would write them.
    pub values: &'static [(Attribute, &'static str)],
}

/// The profiles there are.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "safe",
        help: "as close to plain TCP as possible: late switch, short polling, little memory",
        values: &[(Attribute::SpinUs, "30"), (Attribute::MaxMemory, "256"), (Attribute::SwitchOps, "256"), (Attribute::SwitchBytes, "1048576")],
    },
    Profile {
        name: "latency",
        help: "shortest answer: early switch, long polling",
        values: &[(Attribute::SpinUs, "200"), (Attribute::SwitchOps, "4"), (Attribute::SwitchBytes, "4096")],
    },
    Profile {
        name: "throughput",
        help: "bulk data: early switch, usual polling",
        values: &[(Attribute::SpinUs, "50"), (Attribute::SwitchOps, "16"), (Attribute::SwitchBytes, "16384")],
    },
    Profile { name: "cpu", help: "least processor time: no polling, sleep at once", values: &[(Attribute::SpinUs, "0")] },
];

impl Profile {
    /// The profile with this name.
    pub fn from_name(name: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|p| p.name == name)
    }

    /// Sets what the profile names.
    pub fn apply(&self, layer: &mut Layer) {
        for (attribute, text) in self.values {
            let mut values = Policy::default();
            if values.parse(*attribute, text).is_ok() {
                layer.set(*attribute, &values);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_every_profile_is_one() {
        for profile in PROFILES {
            let mut layer = Layer::default();
            profile.apply(&mut layer);
            for (attribute, text) in profile.values {
                assert!(layer.sets(*attribute), "{} {text}", profile.name);
                assert!(attribute.environment().is_some(), "{}", profile.name);
            }
        }
        assert!(Profile::from_name("fast").is_none());
    }
}
