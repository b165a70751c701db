//! Reads lists and what stands in them: ports, addresses, rules, EIDs. Called by [`super`], which hands the
//! readers on to `smcrctl`.

use core::net::IpAddr;

use super::super::fault::{Fault, TextError};
use super::super::list::{EID_CAP, EID_LEN, Eid, Eids, LIST_CAP, PortRange, Ports, Prefix, Prefixes, Rules};
use super::super::rule::{PROGRAM_LEN, Role, Rule, Use};
use super::uid;

/// The word for a list of ports or addresses that leaves nothing out.
const ALL: &str = "all";
/// The word for a list without anything.
const NONE: &str = "none";

/// Reads "1-20,23,50"; empty or `all` is every port.
pub fn ports(text: &str) -> Result<Ports, TextError<'_>> {
    let mut list = Ports::new();
    for item in items(text, ',', ALL) {
        let item = item?;
        let range = port_range(item)?;
        if let Some(other) = list.iter().find(|r| r.overlaps(range)) {
            return Err(Fault::PortsOverlap(*other).at(item));
        }
        list.push(range).map_err(|_| Fault::TooMany(LIST_CAP).at(item))?;
    }
    Ok(list)
}

/// Reads "23" or "1-20".
pub fn port_range(item: &str) -> Result<PortRange, TextError<'_>> {
    let (first, last) = match item.split_once('-') {
        Some((first, last)) => (port(first, item)?, port(last, item)?),
        None => (port(item, item)?, port(item, item)?),
    };
    PortRange::new(first, last).ok_or(Fault::Backwards(first, last).at(item))
}

fn port<'a>(text: &str, item: &'a str) -> Result<u16, TextError<'a>> {
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Fault::NotAPort.at(item));
    }
    match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Fault::PortOutOfRange.at(item)),
    }
}

/// Reads "10.0.0.0/8,fe80::1"; empty or `all` is every address.
pub fn prefixes(text: &str) -> Result<Prefixes, TextError<'_>> {
    let mut list = Prefixes::new();
    for item in items(text, ',', ALL) {
        let item = item?;
        let prefix = prefix(item)?;
        if let Some(other) = list.iter().find(|p| p.covers(prefix) || prefix.covers(**p)) {
            return Err(Fault::AddressesOverlap(*other).at(item));
        }
        list.push(prefix).map_err(|_| Fault::TooMany(LIST_CAP).at(item))?;
    }
    Ok(list)
}

/// Reads "10.0.0.0/8" or a single address.
pub fn prefix(item: &str) -> Result<Prefix, TextError<'_>> {
    let (addr, bits) = match item.split_once('/') {
        Some((addr, bits)) => (addr, Some(bits)),
        None => (item, None),
    };
    let addr: IpAddr = addr.parse().map_err(|_| Fault::NotAnAddress.at(item))?;
    let Some(bits) = bits else {
        return Ok(Prefix::host(addr));
    };
    let most = if addr.is_ipv4() { 32 } else { 128 };
    let bits: u8 = bits.parse().map_err(|_| Fault::BadBits(most).at(item))?;
    if bits > most {
        return Err(Fault::BadBits(most).at(item));
    }
    let prefix = Prefix::new(addr, bits).ok_or(Fault::BadBits(most).at(item))?;
    if prefix.addr() != addr.to_canonical() {
        return Err(Fault::HostBits(prefix).at(item));
    }
    Ok(prefix)
}

/// Reads rules separated by `;`; `none` or empty is none.
pub fn rules(text: &str) -> Result<Rules, TextError<'_>> {
    let mut list = Rules::new();
    for item in items(text, ';', NONE) {
        let item = item?;
        list.push(rule(item)?).map_err(|_| Fault::TooMany(LIST_CAP).at(item))?;
    }
    Ok(list)
}

/// Reads one rule: words `key=value`, of which `use` must be there.
pub fn rule(item: &str) -> Result<Rule, TextError<'_>> {
    let mut rule = Rule::default();
    let mut order = None;
    let mut seen = [false; 6];
    for word in item.split_whitespace() {
        let (key, value) = word.split_once('=').ok_or(Fault::NotAWord.at(word))?;
        let place = ["use", "program", "role", "uid", "addr", "port"].iter().position(|k| *k == key).ok_or(Fault::NotAWord.at(word))?;
        if let Some(seen) = seen.get_mut(place) {
            if *seen {
                return Err(Fault::Twice.at(word));
            }
            *seen = true;
        }
        match key {
            "use" => {
                order = Some(match value {
                    "smcr" => Use::Smcr,
                    "tcp" => Use::Tcp,
                    _ => return Err(Fault::NotAUse.at(word)),
                });
            }
            "program" => {
                if value.is_empty() || !rule.set_pattern(value.as_bytes()) {
                    return Err(Fault::BadPattern(PROGRAM_LEN - 1).at(word));
                }
            }
            "role" => {
                rule.role = Some(match value {
                    "client" => Role::Client,
                    "server" => Role::Server,
                    _ => return Err(Fault::NotARole.at(word)),
                });
            }
            "uid" => rule.uid = Some(uid(value)?),
            "addr" => rule.addr = Some(prefix(value)?),
            _ => rule.ports = Some(port_range(value)?),
        }
    }
    rule.order = order.ok_or(Fault::NoUse.at(item))?;
    Ok(rule)
}

/// Reads user EIDs separated by commas; `none` or empty is none.
pub fn eids(text: &str) -> Result<Eids, TextError<'_>> {
    let mut list = Eids::new();
    for item in items(text, ',', NONE) {
        let item = item?;
        let eid = Eid::new(item).ok_or(Fault::BadEid(EID_LEN).at(item))?;
        if list.contains(&eid) {
            return Err(Fault::Twice.at(item));
        }
        list.push(eid).map_err(|_| Fault::TooMany(EID_CAP).at(item))?;
    }
    Ok(list)
}

/// The pieces of a list, trimmed. No piece may be empty; the whole may be empty or the word for it.
fn items<'a>(text: &'a str, by: char, empty: &str) -> impl Iterator<Item = Result<&'a str, TextError<'a>>> {
    let text = text.trim();
    let pieces = (!text.is_empty() && text != empty).then(|| text.split(by));
    pieces.into_iter().flatten().map(move |piece| {
        let piece = piece.trim();
        if piece.is_empty() { Err(Fault::EmptyItem.at(text)) } else { Ok(piece) }
    })
}
