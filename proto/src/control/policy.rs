//! What is allowed: a value for every attribute, and the decision about a connection.
//!
//! [`super::layer`] makes the one [`Policy`] out of its sources, and [`decide`] asks it. The library does
//! this once per connection, `smcrctl` to show and explain.

use core::net::IpAddr;

use super::list::{Eids, Ports, Prefixes, Rules};
use super::rule::{Role, Rule, Use, glob};
use crate::reason::Reason;

/// Which media may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Mode {
    /// Shared memory on one host, RDMA between hosts.
    #[default]
    Auto = 0,
    /// Shared memory only.
    Shm = 1,
    /// RDMA only.
    Rdma = 2,
    /// Neither.
    Off = 3,
}

/// Whose processes may be at the other end of a shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PeerUid {
    /// Anybody's: the bytes are meant for the peer anyway. Users that can't be told apart are nobody.
    #[default]
    Any,
    /// Those of the same user.
    Same,
    /// Those of this user.
    Only(u32),
    /// As `Any`, and those of users that the kernel shows as one (65534 in a user namespace).
    Anyone,
}

/// A value for every attribute.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Policy {
    /// Acceleration is on.
    pub enabled: bool,
    /// Media that may be used.
    pub mode: Mode,
    /// A connection that should have left TCP and did not is reset.
    pub strict: bool,
    /// Longest time in microseconds that a waiter polls before it sleeps.
    pub spin_us: u32,
    /// Megabytes of rings per process; beyond it new connections stay on TCP.
    pub max_memory: u32,
    /// A direction may switch after this many sends and receives, or after [`Self::switch_bytes`].
    pub switch_ops: u32,
    /// A direction may switch after this many bytes, or after [`Self::switch_ops`].
    pub switch_bytes: u64,
    /// The service's port must be in here; empty = any.
    pub ports: Ports,
    /// The local or the peer's address must be in here; empty = any.
    pub addrs: Prefixes,
    /// Asked in order before the lists; the first that concerns a connection decides.
    pub rules: Rules,
    /// User EIDs offered to SMC-Rv2 peers.
    pub ueids: Eids,
    /// Users whose processes may share memory with ours.
    pub peer_uid: PeerUid,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            enabled: true,
            mode: Mode::Auto,
            strict: false,
            spin_us: 50,
            max_memory: 4096,
            switch_ops: 16,
            switch_bytes: 64 * 1024,
            ports: Ports::new(),
            addrs: Prefixes::new(),
            rules: Rules::new(),
            ueids: Eids::new(),
            peer_uid: PeerUid::Any,
        }
    }
}

/// A connection about which to decide.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'a> {
    /// File name of the program, without directories.
    pub program: &'a [u8],
    /// Which end this process is.
    pub role: Role,
    /// Effective user of this process.
    pub uid: u32,
    /// Address of this end.
    pub local: IpAddr,
    /// Address of the other end.
    pub peer: IpAddr,
    /// The service's port: the peer's for a client, the own one for a server.
    pub port: u16,
}

/// May this connection be accelerated? If not, why.
///
/// A switched-off library is asked first, then the rules, then the lists of ports and addresses.
pub fn decide(policy: &Policy, flow: &Flow<'_>) -> Result<(), Reason> {
    if !policy.enabled || policy.mode == Mode::Off {
        return Err(Reason::Disabled);
    }
    if let Some(rule) = policy.rules.iter().find(|rule| concerns(rule, flow)) {
        return match rule.order {
            Use::Smcr => Ok(()),
            Use::Tcp => Err(Reason::Rule),
        };
    }
    if !policy.ports.is_empty() && !policy.ports.iter().any(|r| r.contains(flow.port)) {
        return Err(Reason::PortExcluded);
    }
    let listed = |addr| policy.addrs.iter().any(|p| p.contains(addr));
    if !policy.addrs.is_empty() && !listed(flow.local) && !listed(flow.peer) {
        return Err(Reason::AddressExcluded);
    }
    Ok(())
}

/// As [`decide`] for a listener, whose peers are not known yet: no only if it is no for all of them.
pub fn decide_listener(policy: &Policy, flow: &Flow<'_>) -> Result<(), Reason> {
    if !policy.enabled || policy.mode == Mode::Off {
        return Err(Reason::Disabled);
    }
    for rule in policy.rules.iter() {
        let mut but_address = *rule;
        but_address.addr = None;
        match (concerns(&but_address, flow), rule.order, rule.addr) {
            (true, Use::Smcr, _) => return Ok(()),
            (true, Use::Tcp, None) => return Err(Reason::Rule),
            _ => {}
        }
    }
    if !policy.ports.is_empty() && !policy.ports.iter().any(|r| r.contains(flow.port)) {
        return Err(Reason::PortExcluded);
    }
    Ok(())
}

/// May a process of this user be at the other end of a shared memory?
pub fn decide_peer(policy: &Policy, own_uid: u32, peer_uid: u32) -> Result<(), Reason> {
    let allowed = match policy.peer_uid {
        PeerUid::Any | PeerUid::Anyone => true,
        PeerUid::Same => own_uid == peer_uid,
        PeerUid::Only(uid) => uid == peer_uid,
    };
    if allowed { Ok(()) } else { Err(Reason::PeerUidRefused) }
}

/// True if everything that the rule names agrees with the connection.
pub fn concerns(rule: &Rule, flow: &Flow<'_>) -> bool {
    let pattern = rule.pattern();
    (pattern.is_empty() || glob(pattern, flow.program))
        && rule.role.is_none_or(|role| role == flow.role)
        && rule.uid.is_none_or(|uid| uid == flow.uid)
        && rule.ports.is_none_or(|ports| ports.contains(flow.port))
        && rule.addr.is_none_or(|p| p.contains(flow.local) || p.contains(flow.peer))
}

#[cfg(test)]
mod tests {
    use super::super::layer::Attribute;
    use super::super::tests::with;
    use super::*;

    fn flow(port: u16) -> Flow<'static> {
        Flow { program: b"redis-server", role: Role::Server, uid: 1000, local: "10.0.0.1".parse().unwrap(), peer: "192.0.2.9".parse().unwrap(), port }
    }

    #[test]
    fn the_default_allows() {
        assert_eq!(decide(&Policy::default(), &flow(6379)), Ok(()));
    }

    #[test]
    fn switches_come_first() {
        let rules = (Attribute::Rules, "use=smcr");
        let off = with(&[(Attribute::Enabled, "0"), rules]);
        assert_eq!(decide(&off, &flow(1)), Err(Reason::Disabled));
        let off = with(&[(Attribute::Mode, "off"), rules]);
        assert_eq!(decide(&off, &flow(1)), Err(Reason::Disabled));
    }

    #[test]
    fn lists_restrict() {
        let policy = with(&[(Attribute::PortRangeList, "1-20,23,50")]);
        assert_eq!(decide(&policy, &flow(20)), Ok(()));
        assert_eq!(decide(&policy, &flow(21)), Err(Reason::PortExcluded));
        for list in ["10.0.0.0/8", "192.0.2.9"] {
            let policy = with(&[(Attribute::IpAddrList, list)]);
            assert_eq!(decide(&policy, &flow(1)), Ok(()));
        }
        let policy = with(&[(Attribute::IpAddrList, "127.0.0.0/8")]);
        assert_eq!(decide(&policy, &flow(1)), Err(Reason::AddressExcluded));
    }

    #[test]
    fn the_first_rule_that_agrees_decides() {
        let policy = with(&[
            (Attribute::PortRangeList, "50"),
            (Attribute::Rules, "use=smcr program=redis* port=6379; use=tcp uid=1000 role=server; use=smcr"),
        ]);
        assert_eq!(decide(&policy, &flow(6379)), Ok(()));
        assert_eq!(decide(&policy, &flow(50)), Err(Reason::Rule));
        let client = Flow { role: Role::Client, ..flow(80) };
        assert_eq!(decide(&policy, &client), Ok(()));
    }

    #[test]
    fn a_listener_is_refused_only_for_all_of_its_peers() {
        let of = |rules| decide_listener(&with(&[(Attribute::Rules, rules)]), &flow(80));
        assert_eq!(of("use=tcp addr=10.0.0.0/8"), Ok(()));
        assert_eq!(of("use=tcp port=80"), Err(Reason::Rule));
        assert_eq!(of("use=smcr addr=10.1.1.1; use=tcp"), Ok(()));
        assert_eq!(of("use=smcr role=client; use=tcp"), Err(Reason::Rule));
        let ports = with(&[(Attribute::PortRangeList, "81")]);
        assert_eq!(decide_listener(&ports, &flow(80)), Err(Reason::PortExcluded));
    }

    #[test]
    fn peers_can_be_narrowed() {
        assert_eq!(decide_peer(&Policy::default(), 1, 2), Ok(()));
        let same = with(&[(Attribute::PeerUid, "same")]);
        assert_eq!(decide_peer(&same, 1, 2), Err(Reason::PeerUidRefused));
        let only = with(&[(Attribute::PeerUid, "2")]);
        assert_eq!(decide_peer(&only, 1, 2), Ok(()));
    }
}
