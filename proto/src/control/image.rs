//! The bytes of a control page: from values and back, at the offsets of the parent module.

use core::net::IpAddr;

use super::drain::{Drains, Target};
use super::layer::Attribute;
use super::list::{EID_LEN, Eid, List, PortRange, Prefix};
use super::policy::{Mode, PeerUid, Policy};
use super::rule::{PROGRAM_LEN, Role, Rule, Use};
use super::text::{MAX_MEMORY_MAX, SPIN_US_MAX, SWITCH_BYTES_MAX, SWITCH_OPS_MAX};
use super::{LEN, MAGIC, Page, PageError, VERSION, offset};

const ANY_UID: u32 = u32::MAX;

/// Offsets in a rule.
mod in_rule {
    use super::super::rule::PROGRAM_LEN;

    pub const ORDER: usize = PROGRAM_LEN;
    pub const ROLE: usize = ORDER + 1;
    pub const UID: usize = ORDER + 4;
    pub const FIRST: usize = UID + 4;
    pub const LAST: usize = FIRST + 2;
    pub const ADDR: usize = LAST + 2;
}

/// See [`super::parse`]; works in place, for the sake of small stacks.
pub fn parse(bytes: &[u8], out: &mut Page) -> Result<(), PageError> {
    let r = Reader(bytes);
    if bytes.get(..MAGIC.len()) != Some(&MAGIC[..]) {
        return Err(if bytes.len() < LEN { PageError::TooShort(bytes.len()) } else { PageError::NotAPage });
    }
    match r.u32(offset::VERSION)? {
        VERSION => {}
        0 => return Err(PageError::Field("version")),
        newer => return Err(PageError::Newer(newer)),
    }
    if bytes.len() < LEN {
        return Err(PageError::TooShort(bytes.len()));
    }
    if r.u32(offset::LENGTH)? as usize != LEN {
        return Err(PageError::Field("length"));
    }
    let (set, values) = out.layer.parts();
    *set = r.u64(offset::SET)?;
    if *set >> Attribute::ALL.len() != 0 {
        return Err(PageError::Field("set"));
    }
    scalars(&r, values)?;
    lists(&r, values)?;
    drains(&r, &mut out.drains)
}

fn scalars(r: &Reader<'_>, out: &mut Policy) -> Result<(), PageError> {
    out.enabled = r.flag(offset::ENABLED, "enabled")?;
    out.mode = match r.u32(offset::MODE)? {
        0 => Mode::Auto,
        1 => Mode::Shm,
        2 => Mode::Rdma,
        3 => Mode::Off,
        _ => return Err(PageError::Field("mode")),
    };
    out.strict = r.flag(offset::STRICT, "strict")?;
    out.spin_us = r.at_most(offset::SPIN_US, SPIN_US_MAX, "spin_us")?;
    out.max_memory = r.at_most(offset::MAX_MEMORY, MAX_MEMORY_MAX, "max_memory")?;
    out.switch_ops = r.at_most(offset::SWITCH_OPS, SWITCH_OPS_MAX, "switch_ops")?;
    out.switch_bytes = r.u64(offset::SWITCH_BYTES)?;
    if out.switch_bytes > SWITCH_BYTES_MAX {
        return Err(PageError::Field("switch_bytes"));
    }
    out.peer_uid = match r.u32(offset::PEER_UID_KIND)? {
        0 => PeerUid::Any,
        1 => PeerUid::Same,
        2 => PeerUid::Only(r.u32(offset::PEER_UID)?),
        3 => PeerUid::Anyone,
        _ => return Err(PageError::Field("peer_uid")),
    };
    Ok(())
}

fn lists(r: &Reader<'_>, out: &mut Policy) -> Result<(), PageError> {
    let ports = (offset::PORT_COUNT, offset::PORTS, offset::PORT_SIZE);
    list(r, ports, "port_range_list", &mut out.ports, |at| Ok(PortRange::new(r.u16(at)?, r.u16(at + 2)?)))?;
    let addrs = (offset::ADDR_COUNT, offset::ADDRS, offset::ADDR_SIZE);
    list(r, addrs, "ip_addr_list", &mut out.addrs, |at| prefix(r, at))?;
    let rules = (offset::RULE_COUNT, offset::RULES, offset::RULE_SIZE);
    list(r, rules, "rules", &mut out.rules, |at| rule(r, at))?;
    let eids = (offset::EID_COUNT, offset::EIDS, EID_LEN);
    list(r, eids, "user_eids", &mut out.ueids, |at| eid(r, at))
}

/// Reads a list whose count, first record and size of a record are at `place`; `item` gives none
/// for a record that cannot be.
fn list<T: Copy + Default, const N: usize>(
    r: &Reader<'_>,
    place: (usize, usize, usize),
    name: &'static str,
    out: &mut List<T, N>,
    item: impl Fn(usize) -> Result<Option<T>, PageError>,
) -> Result<(), PageError> {
    let (count, first, size) = place;
    let count = r.u32(count)? as usize;
    if count > N {
        return Err(PageError::Field(name));
    }
    out.clear();
    for i in 0..count {
        let item = item(first + i * size)?.ok_or(PageError::Field(name))?;
        out.push(item).map_err(|_| PageError::Field(name))?;
    }
    Ok(())
}

fn prefix(r: &Reader<'_>, at: usize) -> Result<Option<Prefix>, PageError> {
    let addr = match r.u8(at + 16)? {
        4 => IpAddr::from(r.array::<4>(at)?),
        6 => IpAddr::from(r.array::<16>(at)?),
        _ => return Ok(None),
    };
    let bits = r.u8(at + 17)?;
    let prefix = Prefix::new(addr, bits);
    Ok(prefix.filter(|p| p.addr() == addr && p.bits() == bits))
}

fn eid(r: &Reader<'_>, at: usize) -> Result<Option<Eid>, PageError> {
    let bytes = r.array::<EID_LEN>(at)?;
    let eid = Eid::new(Eid(bytes).text());
    Ok(eid.filter(|e| *e.bytes() == bytes))
}

fn rule(r: &Reader<'_>, at: usize) -> Result<Option<Rule>, PageError> {
    let mut rule = Rule { program: r.array::<PROGRAM_LEN>(at)?, ..Rule::default() };
    let tail = rule.program.get(rule.pattern().len()..).unwrap_or(&[]);
    if tail.is_empty() || tail.iter().any(|b| *b != 0) {
        return Ok(None);
    }
    rule.order = match r.u8(at + in_rule::ORDER)? {
        0 => Use::Smcr,
        1 => Use::Tcp,
        _ => return Ok(None),
    };
    rule.role = match r.u8(at + in_rule::ROLE)? {
        0 => None,
        1 => Some(Role::Client),
        2 => Some(Role::Server),
        _ => return Ok(None),
    };
    let uid = r.u32(at + in_rule::UID)?;
    rule.uid = (uid != ANY_UID).then_some(uid);
    let (first, last) = (r.u16(at + in_rule::FIRST)?, r.u16(at + in_rule::LAST)?);
    if (first, last) != (0, 0) {
        rule.ports = PortRange::new(first, last);
        if rule.ports.is_none() {
            return Ok(None);
        }
    }
    if r.u8(at + in_rule::ADDR + 16)? != 0 {
        rule.addr = prefix(r, at + in_rule::ADDR)?;
        if rule.addr.is_none() {
            return Ok(None);
        }
    }
    Ok(Some(rule))
}

fn drains(r: &Reader<'_>, out: &mut Drains) -> Result<(), PageError> {
    out.newest = r.u64(offset::DRAIN_NEWEST)?;
    for (i, slot) in out.ring.iter_mut().enumerate() {
        let at = offset::DRAINS + i * offset::DRAIN_SIZE;
        let number = r.u32(at + 4)?;
        *slot = match r.u32(at)? {
            0 => Target::All,
            1 => Target::Process { pid: number, start: r.u64(at + 8)? },
            2 => Target::Port(u16::try_from(number).map_err(|_| PageError::Field("drain"))?),
            _ => return Err(PageError::Field("drain")),
        };
    }
    Ok(())
}

/// Looks at bytes that may be anything.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], PageError> {
        self.0.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().ok_or(PageError::TooShort(self.0.len()))
    }

    fn u8(&self, at: usize) -> Result<u8, PageError> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    fn u16(&self, at: usize) -> Result<u16, PageError> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Result<u32, PageError> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Result<u64, PageError> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn flag(&self, at: usize, name: &'static str) -> Result<bool, PageError> {
        Ok(self.at_most(at, 1, name)? == 1)
    }

    fn at_most(&self, at: usize, most: u32, name: &'static str) -> Result<u32, PageError> {
        let value = self.u32(at)?;
        if value > most {
            return Err(PageError::Field(name));
        }
        Ok(value)
    }
}

/// See [`super::emit`].
pub fn emit(page: &Page, image: &mut [u8; LEN]) {
    image.fill(0);
    let p = page.layer.values();
    put(image, offset::MAGIC, &MAGIC);
    put(image, offset::VERSION, &VERSION.to_le_bytes());
    put(image, offset::LENGTH, &(LEN as u32).to_le_bytes());
    put(image, offset::SET, &page.layer.bits().to_le_bytes());
    let (kind, uid) = match p.peer_uid {
        PeerUid::Any => (0, 0),
        PeerUid::Same => (1, 0),
        PeerUid::Only(uid) => (2, uid),
        PeerUid::Anyone => (3, 0),
    };
    for (at, value) in [
        (offset::ENABLED, u32::from(p.enabled)),
        (offset::MODE, p.mode as u32),
        (offset::STRICT, u32::from(p.strict)),
        (offset::SPIN_US, p.spin_us),
        (offset::MAX_MEMORY, p.max_memory),
        (offset::SWITCH_OPS, p.switch_ops),
        (offset::PEER_UID_KIND, kind),
        (offset::PEER_UID, uid),
        (offset::PORT_COUNT, p.ports.len() as u32),
        (offset::ADDR_COUNT, p.addrs.len() as u32),
        (offset::RULE_COUNT, p.rules.len() as u32),
        (offset::EID_COUNT, p.ueids.len() as u32),
    ] {
        put(image, at, &value.to_le_bytes());
    }
    put(image, offset::SWITCH_BYTES, &p.switch_bytes.to_le_bytes());
    for (i, range) in p.ports.iter().enumerate() {
        put_ports(image, offset::PORTS + i * offset::PORT_SIZE, *range);
    }
    for (i, prefix) in p.addrs.iter().enumerate() {
        put_prefix(image, offset::ADDRS + i * offset::ADDR_SIZE, *prefix);
    }
    for (i, eid) in p.ueids.iter().enumerate() {
        put(image, offset::EIDS + i * EID_LEN, eid.bytes());
    }
    for (i, rule) in p.rules.iter().enumerate() {
        put_rule(image, offset::RULES + i * offset::RULE_SIZE, rule);
    }
    put_drains(image, &page.drains);
}

fn put_ports(image: &mut [u8; LEN], at: usize, range: PortRange) {
    put(image, at, &range.first.to_le_bytes());
    put(image, at + 2, &range.last.to_le_bytes());
}

fn put_prefix(image: &mut [u8; LEN], at: usize, prefix: Prefix) {
    match prefix.addr() {
        IpAddr::V4(addr) => {
            put(image, at, &addr.octets());
            put(image, at + 16, &[4, prefix.bits()]);
        }
        IpAddr::V6(addr) => {
            put(image, at, &addr.octets());
            put(image, at + 16, &[6, prefix.bits()]);
        }
    }
}

fn put_rule(image: &mut [u8; LEN], at: usize, rule: &Rule) {
    put(image, at, &rule.program);
    let role = rule.role.map_or(0, |role| role as u8);
    put(image, at + in_rule::ORDER, &[rule.order as u8, role]);
    let uid = rule.uid.unwrap_or(ANY_UID);
    put(image, at + in_rule::UID, &uid.to_le_bytes());
    if let Some(ports) = rule.ports {
        put_ports(image, at + in_rule::FIRST, ports);
    }
    if let Some(addr) = rule.addr {
        put_prefix(image, at + in_rule::ADDR, addr);
    }
}

fn put_drains(image: &mut [u8; LEN], drains: &Drains) {
    put(image, offset::DRAIN_NEWEST, &drains.newest.to_le_bytes());
    for (i, target) in drains.ring.iter().enumerate() {
        let at = offset::DRAINS + i * offset::DRAIN_SIZE;
        let (kind, number, start) = match *target {
            Target::All => (0u32, 0, 0),
            Target::Process { pid, start } => (1, pid, start),
            Target::Port(port) => (2, u32::from(port), 0),
        };
        put(image, at, &kind.to_le_bytes());
        put(image, at + 4, &number.to_le_bytes());
        put(image, at + 8, &start.to_le_bytes());
    }
}

/// Every offset is a constant below [`offset::END`], so nothing is ever left out.
fn put(image: &mut [u8; LEN], at: usize, bytes: &[u8]) {
    if let Some(place) = image.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}
