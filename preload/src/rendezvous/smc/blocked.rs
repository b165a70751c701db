//! Hosts to which RoCE does not get through: a link to them did not come up.
//!
//! Such an attempt costs a connection some seconds in which its bytes wait, so for a while connections to the host stay
//! on TCP from the start: a minute, and twice as long after each further failure, up to [`LONGEST`]. Kept for each process,
//! and used by its service thread alone ([`super::shake`]).

use crate::sys::net;
use smcr_proto::smc::Time;

/// After the first failure.
const FIRST: Time = Time::from_secs(60);
/// At most.
const LONGEST: Time = Time::from_secs(960);
/// Hosts that are remembered; the one whose time is over first makes room.
const MOST: usize = 64;

/// An address, IPv4 in the first four bytes.
pub type Address = [u8; 16];

/// Hosts, by address.
#[derive(Default)]
pub struct Blocked(Vec<Host>);

struct Host {
    address: Address,
    until: Time,
    pause: Time,
}

impl Blocked {
    /// A link to this host did not come up.
    pub fn note(&mut self, address: Address, now: Time) {
        if let Some(host) = self.0.iter_mut().find(|h| h.address == address) {
            // Connections that began together fail together: that is one failure.
            if host.until <= now {
                host.pause = (host.pause + host.pause).min(LONGEST);
                host.until = now + host.pause;
            }
            return;
        }
        if self.0.len() >= MOST
            && let Some(first) = (0..self.0.len()).min_by_key(|i| self.0[*i].until)
        {
            self.0.swap_remove(first);
        }
        self.0.push(Host { address, until: now + FIRST, pause: FIRST });
    }

    /// A link to this host came up.
    pub fn forget(&mut self, address: Address) {
        self.0.retain(|h| h.address != address);
    }

    /// Whether no link to it is tried now.
    pub fn has(&self, address: Address, now: Time) -> bool {
        self.0.iter().any(|h| h.address == address && h.until > now)
    }
}

/// The other end's host.
pub fn host(sock: i32) -> Option<Address> {
    Some(net::peer_addr(sock).ok()?.folded().ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Address = *b"192.0.2.1       ";

    #[test]
    fn a_host_is_tried_again_after_a_while_and_ever_less_often() {
        let mut blocked = Blocked::default();
        let mut now = Time::from_secs(5);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            blocked.note(HOST, now);
            blocked.note(HOST, now); // one that began at the same time
            let begun = now;
            while blocked.has(HOST, now) {
                now += Time::from_secs(1);
            }
            pauses.push(now.saturating_sub(begun).as_micros() / 1_000_000);
        }
        assert_eq!(pauses, [60, 120, 240, 480, 960, 960]);
        blocked.forget(HOST);
        blocked.note(HOST, now);
        assert!(!blocked.has(HOST, now + FIRST));
    }

    #[test]
    fn many_hosts_take_no_more_room() {
        let mut blocked = Blocked::default();
        for n in 0..200u8 {
            blocked.note([n; 16], Time::from_secs(u64::from(n)));
        }
        assert_eq!(blocked.0.len(), MOST);
        assert!(blocked.has([199; 16], Time::from_secs(200)));
    }
}
