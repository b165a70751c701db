//! Reads the text form of every attribute, as it is written in the environment, in a configuration
//! file and on the command line.
//!
//! A mistake names the piece that is wrong and what to write instead; nothing is changed then.

mod lists;

pub use lists::{eids, port_range, ports, prefix, prefixes, rule, rules};

use super::fault::{Fault, TextError};
use super::layer::{Attribute, Layer};
use super::policy::{Mode, PeerUid, Policy};

/// Largest value of `spin_us`.
pub const SPIN_US_MAX: u32 = 100_000;
/// Largest value of `max_memory`: a terabyte.
pub const MAX_MEMORY_MAX: u32 = 1 << 20;
/// Largest value of `switch_ops`.
pub const SWITCH_OPS_MAX: u32 = 1_000_000;
/// Largest value of `switch_bytes`: a terabyte.
pub const SWITCH_BYTES_MAX: u64 = 1 << 40;

impl Policy {
    /// Sets one attribute from its text.
    pub fn parse<'a>(&mut self, attribute: Attribute, text: &'a str) -> Result<(), TextError<'a>> {
        let text = text.trim();
        match attribute {
            Attribute::Enabled => self.enabled = flag(text)?,
            Attribute::Mode => self.mode = mode(text)?,
            Attribute::Strict => self.strict = flag(text)?,
            Attribute::SpinUs => self.spin_us = number(text, u64::from(SPIN_US_MAX))? as u32,
            Attribute::MaxMemory => {
                self.max_memory = number(text, u64::from(MAX_MEMORY_MAX))? as u32;
            }
            Attribute::SwitchOps => {
                self.switch_ops = number(text, u64::from(SWITCH_OPS_MAX))? as u32;
            }
            Attribute::SwitchBytes => self.switch_bytes = number(text, SWITCH_BYTES_MAX)?,
            Attribute::PortRangeList => self.ports = ports(text)?,
            Attribute::IpAddrList => self.addrs = prefixes(text)?,
            Attribute::Rules => self.rules = rules(text)?,
            Attribute::UserEids => self.ueids = eids(text)?,
            Attribute::PeerUid => self.peer_uid = peer_uid(text)?,
        }
        Ok(())
    }
}

/// The layer that environment variables make. `lookup` gives the text of a variable; `wrong` hears
/// of each one that cannot be read, which then sets nothing.
pub fn environment<'a>(lookup: impl Fn(&str) -> Option<&'a str>, mut wrong: impl FnMut(&'static str, TextError<'a>)) -> Layer {
    let mut layer = Layer::default();
    for attribute in Attribute::ALL {
        let Some(name) = attribute.environment() else {
            continue;
        };
        let Some(text) = lookup(name) else { continue };
        let mut values = Policy::default();
        match values.parse(*attribute, text) {
            Ok(()) => layer.set(*attribute, &values),
            Err(error) => wrong(name, error),
        }
    }
    layer
}

fn flag(text: &str) -> Result<bool, TextError<'_>> {
    match text {
        "1" | "true" | "on" | "yes" => Ok(true),
        "0" | "false" | "off" | "no" => Ok(false),
        _ => Err(Fault::NotAFlag.at(text)),
    }
}

fn mode(text: &str) -> Result<Mode, TextError<'_>> {
    match text {
        "auto" => Ok(Mode::Auto),
        "shm" => Ok(Mode::Shm),
        "rdma" => Ok(Mode::Rdma),
        "off" => Ok(Mode::Off),
        _ => Err(Fault::NotAMode.at(text)),
    }
}

fn number(text: &str, most: u64) -> Result<u64, TextError<'_>> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(n) if digits && n <= most => Ok(n),
        _ => Err(Fault::NotANumber(most).at(text)),
    }
}

/// Reads a user number; the last one means "nobody in particular" to the kernel and is none.
fn uid(text: &str) -> Result<u32, TextError<'_>> {
    Ok(number(text, u64::from(u32::MAX - 1))? as u32)
}

fn peer_uid(text: &str) -> Result<PeerUid, TextError<'_>> {
    match text {
        "any" => Ok(PeerUid::Any),
        "same" => Ok(PeerUid::Same),
        "anyone" => Ok(PeerUid::Anyone),
        _ => match uid(text) {
            Ok(uid) => Ok(PeerUid::Only(uid)),
            Err(_) => Err(Fault::NotAPeerUid.at(text)),
        },
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn what_is_shown_is_read_back() {
        let texts = [
            (Attribute::Enabled, "0"),
            (Attribute::Mode, "rdma"),
            (Attribute::Strict, "1"),
            (Attribute::SpinUs, "100000"),
            (Attribute::MaxMemory, "0"),
            (Attribute::SwitchOps, "3"),
            (Attribute::SwitchBytes, "1099511627776"),
            (Attribute::PortRangeList, "1-20,23,50"),
            (Attribute::PortRangeList, ""),
            (Attribute::IpAddrList, "10.0.0.0/8,fe80::1,192.0.2.1"),
            (Attribute::Rules, "use=tcp program=redis* role=server uid=0 addr=10.0.0.0/8 port=1-2; use=smcr"),
            (Attribute::UserEids, "A.B-1,C"),
            (Attribute::PeerUid, "1000"),
            (Attribute::PeerUid, "same"),
            (Attribute::PeerUid, "anyone"),
        ];
        for (attribute, text) in texts {
            let mut policy = Policy::default();
            policy.parse(attribute, text).unwrap();
            assert_eq!(policy.show(attribute).to_string(), text);
        }
        for attribute in Attribute::ALL {
            let text = Policy::default().show(*attribute).to_string();
            let mut policy = Policy::default();
            policy.parse(*attribute, &text).unwrap();
            assert_eq!(policy, Policy::default());
        }
    }

    #[test]
    fn mistakes_name_the_piece_and_the_mend() {
        let wrong = [
            (Attribute::PortRangeList, "1,9-2", "`9-2`: the range runs backwards; write 2-9"),
            (Attribute::PortRangeList, "70000", "`70000`: ports go from 1 to 65535"),
            (Attribute::PortRangeList, "0", "`0`: ports go from 1 to 65535"),
            (Attribute::PortRangeList, "1-20, 15-30", "`15-30`: overlaps 1-20 of the same list; write one range"),
            (Attribute::PortRangeList, "1,,2", "`1,,2`: an empty item; remove the extra separator"),
            (Attribute::PortRangeList, "http", "`http`: write a port or a range of ports, such as 23 or 1-20"),
            (Attribute::IpAddrList, "10.1.2.3/8", "`10.1.2.3/8`: has bits beyond the prefix length; write 10.0.0.0/8"),
            (Attribute::IpAddrList, "10.0.0.0/33", "`10.0.0.0/33`: a prefix length goes from 0 to 32"),
            (Attribute::IpAddrList, "10.0.0.0/8,10.1.0.0/16", "`10.1.0.0/16`: overlaps 10.0.0.0/8 of the same list; leave one out"),
            (Attribute::Enabled, "2", "`2`: write 0 or 1"),
            (Attribute::SpinUs, "-1", "`-1`: write a number from 0 to 100000"),
            (Attribute::SpinUs, "", "``: write a number from 0 to 100000"),
            (Attribute::Rules, "port=1", "`port=1`: a rule needs use=smcr or use=tcp"),
            (Attribute::Rules, "use=tcp use=tcp", "`use=tcp`: is there twice; leave one out"),
        ];
        for (attribute, text, message) in wrong {
            let mut policy = Policy::default();
            let error = policy.parse(attribute, text).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(policy, Policy::default());
        }
    }

    #[test]
    fn a_wrong_variable_sets_nothing() {
        let mut heard = None;
        let layer = environment(
            |name| match name {
                "SMCR_ENABLE" => Some("0"),
                "SMCR_PORTS" => Some("9-2"),
                _ => None,
            },
            |name, error| heard = Some((name, error.item)),
        );
        assert!(layer.sets(Attribute::Enabled) && !layer.values().enabled);
        assert!(!layer.sets(Attribute::PortRangeList));
        assert_eq!(heard, Some(("SMCR_PORTS", "9-2")));
    }
}
