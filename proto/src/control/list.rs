//! The values that lists of the control page are made of: ports, prefixes and EIDs; rules are in `rule`.
//!
//! All of them are of fixed size and `Copy`, so that a policy is one flat value without an
//! allocation. Text is read and shown by `text`, bytes by the parent module.

use core::fmt;
use core::net::IpAddr;
use core::ops::Deref;

use super::rule::Rule;

/// Port ranges, prefixes and rules that fit into a page, each.
pub const LIST_CAP: usize = 64;
/// User EIDs that fit into a page; the protocol's own limit (SMC_MAX_UEID).
pub const EID_CAP: usize = 8;
/// Bytes of an EID.
pub const EID_LEN: usize = 32;

/// The port ranges of an attribute; empty means every port.
pub type Ports = List<PortRange, LIST_CAP>;
/// The address prefixes of an attribute; empty means every address.
pub type Prefixes = List<Prefix, LIST_CAP>;
/// Rules in the order in which they are asked.
pub type Rules = List<Rule, LIST_CAP>;
/// User EIDs.
pub type Eids = List<Eid, EID_CAP>;

/// A list of at most `N` values, kept in place.
#[derive(Clone, Copy)]
pub struct List<T, const N: usize> {
    len: usize,
    items: [T; N],
}

/// The list has no room left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl<T: Copy + Default, const N: usize> List<T, N> {
    /// A list without values.
    pub fn new() -> Self {
        List { len: 0, items: [T::default(); N] }
    }

    /// Takes all values out.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends one value.
    pub fn push(&mut self, item: T) -> Result<(), Full> {
        let place = self.items.get_mut(self.len).ok_or(Full)?;
        *place = item;
        self.len += 1;
        Ok(())
    }
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.items.get(..self.len).unwrap_or(&[])
    }
}

impl<T: PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Ports `first` to `last`, both included; never 0, never backwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRange {
    /// Lowest port.
    pub first: u16,
    /// Highest port.
    pub last: u16,
}

impl PortRange {
    /// Every port.
    pub const ALL: PortRange = PortRange { first: 1, last: u16::MAX };

    /// The range, unless it is none.
    pub const fn new(first: u16, last: u16) -> Option<PortRange> {
        if first == 0 || first > last {
            return None;
        }
        Some(PortRange { first, last })
    }

    /// True for a port of the range.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// True if a port lies in both.
    pub const fn overlaps(self, other: PortRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl Default for PortRange {
    fn default() -> Self {
        PortRange::ALL
    }
}

/// An address with the number of leading bits that count; the others are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    addr: IpAddr,
    bits: u8,
}

impl Prefix {
    /// The prefix of `bits` bits that `addr` lies in; none if the address has fewer bits. An IPv6
    /// address that only wraps an IPv4 one counts as that.
    pub fn new(addr: IpAddr, bits: u8) -> Option<Prefix> {
        let plain = addr.to_canonical();
        let bits = match (addr, plain) {
            (IpAddr::V6(_), IpAddr::V4(_)) => bits.checked_sub(96)?,
            _ => bits,
        };
        if bits > width(plain) {
            return None;
        }
        Some(Prefix { addr: masked(plain, bits), bits })
    }

    /// The prefix that holds this address alone.
    pub fn host(addr: IpAddr) -> Prefix {
        let addr = addr.to_canonical();
        Prefix { addr, bits: width(addr) }
    }

    /// The address, bits beyond the prefix being 0.
    pub const fn addr(self) -> IpAddr {
        self.addr
    }

    /// Number of bits that count.
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// True if the prefix is one address.
    pub fn is_host(self) -> bool {
        self.bits == width(self.addr)
    }

    /// True if the address lies in the prefix.
    pub fn contains(self, addr: IpAddr) -> bool {
        let addr = addr.to_canonical();
        width(addr) == width(self.addr) && masked(addr, self.bits) == self.addr
    }

    /// True if every address of `other` lies in this prefix.
    pub fn covers(self, other: Prefix) -> bool {
        self.bits <= other.bits && self.contains(other.addr)
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Prefix { addr: IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED), bits: 0 }
    }
}

fn width(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn masked(addr: IpAddr, bits: u8) -> IpAddr {
    match addr {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((a.to_bits() & mask).into())
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((a.to_bits() & mask).into())
        }
    }
}

/// A user EID: printable, in capitals, filled up with blanks as it goes over the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Eid(pub(super) [u8; EID_LEN]);

impl Eid {
    /// The bytes as they go over the wire.
    pub const fn bytes(&self) -> &[u8; EID_LEN] {
        &self.0
    }

    /// The text without the blanks.
    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or("").trim_end()
    }

    /// The EID with this text, which the Linux kernel would accept too: at most 32 capitals,
    /// digits, `.` and `-`, a capital or digit first.
    pub fn new(text: &str) -> Option<Eid> {
        let bytes = text.as_bytes();
        let good = |b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit();
        let first = bytes.first()?;
        if bytes.len() > EID_LEN || !good(first) {
            return None;
        }
        if !bytes.iter().all(|b| good(b) || *b == b'.' || *b == b'-') {
            return None;
        }
        let mut eid = [b' '; EID_LEN];
        eid.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Some(Eid(eid))
    }
}

impl Default for Eid {
    fn default() -> Self {
        Eid([b' '; EID_LEN])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_hold_their_addresses() {
        let ten = Prefix::new("10.9.8.7".parse().unwrap(), 8).unwrap();
        assert_eq!(ten.addr(), "10.0.0.0".parse::<IpAddr>().unwrap());
        assert!(ten.contains("10.255.0.1".parse().unwrap()));
        assert!(ten.contains("::ffff:10.1.1.1".parse().unwrap()));
        assert!(!ten.contains("11.0.0.1".parse().unwrap()));
        assert!(!ten.contains("a00::".parse().unwrap()));
        let all6 = Prefix::new("::".parse().unwrap(), 0).unwrap();
        assert!(all6.contains("fe80::1".parse().unwrap()));
        assert!(!all6.contains("10.0.0.1".parse().unwrap()));
        assert!(Prefix::new("10.0.0.0".parse().unwrap(), 33).is_none());
        assert_eq!(Prefix::new("::ffff:10.0.0.0".parse().unwrap(), 104), Some(ten));
        assert!(ten.covers(Prefix::host("10.1.2.3".parse().unwrap())));
    }

    #[test]
    fn eids_follow_the_kernel() {
        assert_eq!(Eid::new("SMCV2-A.1").unwrap().text(), "SMCV2-A.1");
        for bad in ["", ".A", "a", "A B", "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456"] {
            assert!(Eid::new(bad).is_none(), "{bad}");
        }
    }
}
