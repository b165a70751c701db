//! Shows the values of the control page as text that `text` reads back.

use core::fmt;

use super::layer::Attribute;
use super::list::{Eid, PortRange, Prefix};
use super::policy::{Mode, PeerUid, Policy};
use super::rule::{Role, Rule, Use};

impl Policy {
    /// One attribute as text that [`Policy::parse`] reads back.
    pub fn show(&self, attribute: Attribute) -> Shown<'_> {
        Shown { policy: self, attribute }
    }
}

/// An attribute of a policy, to be shown.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    policy: &'a Policy,
    attribute: Attribute,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = self.policy;
        match self.attribute {
            Attribute::Enabled => write!(f, "{}", u8::from(p.enabled)),
            Attribute::Mode => f.write_str(match p.mode {
                Mode::Auto => "auto",
                Mode::Shm => "shm",
                Mode::Rdma => "rdma",
                Mode::Off => "off",
            }),
            Attribute::Strict => write!(f, "{}", u8::from(p.strict)),
            Attribute::SpinUs => write!(f, "{}", p.spin_us),
            Attribute::MaxMemory => write!(f, "{}", p.max_memory),
            Attribute::SwitchOps => write!(f, "{}", p.switch_ops),
            Attribute::SwitchBytes => write!(f, "{}", p.switch_bytes),
            Attribute::PortRangeList => joined(f, &p.ports, ","),
            Attribute::IpAddrList => joined(f, &p.addrs, ","),
            Attribute::Rules => joined(f, &p.rules, "; "),
            Attribute::UserEids => joined(f, &p.ueids, ","),
            Attribute::PeerUid => match p.peer_uid {
                PeerUid::Any => f.write_str("any"),
                PeerUid::Same => f.write_str("same"),
                PeerUid::Anyone => f.write_str("anyone"),
                PeerUid::Only(uid) => write!(f, "{uid}"),
            },
        }
    }
}

fn joined<T: fmt::Display>(f: &mut fmt::Formatter<'_>, list: &[T], by: &str) -> fmt::Result {
    for (i, item) in list.iter().enumerate() {
        if i > 0 {
            f.write_str(by)?;
        }
        item.fmt(f)?;
    }
    Ok(())
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return write!(f, "{}", self.first);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_host() {
            return write!(f, "{}", self.addr());
        }
        write!(f, "{}/{}", self.addr(), self.bits())
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.order {
            Use::Smcr => "use=smcr",
            Use::Tcp => "use=tcp",
        })?;
        let pattern = core::str::from_utf8(self.pattern()).unwrap_or("?");
        if !pattern.is_empty() {
            write!(f, " program={pattern}")?;
        }
        match self.role {
            Some(Role::Client) => f.write_str(" role=client")?,
            Some(Role::Server) => f.write_str(" role=server")?,
            None => {}
        }
        if let Some(uid) = self.uid {
            write!(f, " uid={uid}")?;
        }
        if let Some(addr) = self.addr {
            write!(f, " addr={addr}")?;
        }
        if let Some(ports) = self.ports {
            write!(f, " port={ports}")?;
        }
        Ok(())
    }
}
