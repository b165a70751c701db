//! Names of network interfaces in a list of addresses, and the addresses that they stand for. Used by `config`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context, anyhow, bail};
use smcr_proto::control::{Prefix, text};

/// Characters of a name, at most.
const LONGEST: usize = 15;
/// What a list holds all of whose interfaces have no address: no connection has this one, and an empty list is every address.
const NOBODYS: &str = "0.0.0.0";

/// Replaces names of interfaces by the interfaces' addresses; each must have one.
pub fn resolve(list: &str) -> anyhow::Result<String> {
    let mut first = None;
    let resolved = resolve_present(list, |absent| {
        first.get_or_insert(absent);
    })?;
    match first {
        None => Ok(resolved),
        Some(absent) => bail!("{absent}"),
    }
}

/// The same, where interfaces without an address are left out; `absent` hears of each.
pub fn resolve_present(list: &str, mut absent: impl FnMut(anyhow::Error)) -> anyhow::Result<String> {
    if !list.split(',').any(|item| is_name(item.trim())) {
        return Ok(list.to_string());
    }
    let known = addresses()?;
    let mut items = Vec::new();
    // What the list covers already it needs not once more.
    let mut covered: Vec<Prefix> = list.split(',').filter_map(|item| text::prefix(item.trim()).ok()).collect();
    for item in list.split(',').map(str::trim) {
        if !is_name(item) {
            items.push(item.to_string());
            continue;
        }
        let own: BTreeSet<_> = known.iter().filter(|(n, _)| n == item).map(|(_, a)| a).collect();
        if own.is_empty() {
            let names: BTreeSet<_> = known.iter().map(|(n, _)| n.as_str()).collect();
            let names: Vec<_> = names.into_iter().collect();
            absent(anyhow!(
                "`{item}` is neither an address, such as 10.0.0.0/8, nor an interface with one ({}); smcrctl config apply \
                 takes what it has later",
                names.join(", ")
            ));
        }
        for a in own {
            if !covered.iter().any(|p| p.contains(*a)) {
                covered.push(Prefix::host(*a));
                items.push(Prefix::host(*a).to_string());
            }
        }
    }
    if items.is_empty() {
        items.push(NOBODYS.into());
    }
    Ok(items.join(","))
}

/// Whether this can be the name of an interface, and nothing else that a list may hold.
fn is_name(word: &str) -> bool {
    let can_be = !word.is_empty() && word.len() <= LONGEST && !word.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
    can_be && word != "all" && text::prefix(word).is_err() && word.parse::<IpAddr>().is_err()
}

/// The interfaces of this network namespace, once for each of their addresses.
fn addresses() -> anyhow::Result<Vec<(String, IpAddr)>> {
    let all = nix::ifaddrs::getifaddrs().context("cannot list the network interfaces")?;
    let one = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = entry.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let v6 = address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
        Some((entry.interface_name, v4.or(v6)?))
    };
    Ok(all.filter_map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_have_addresses() {
        assert!(resolve("10.0.0.0/8, lo").unwrap().contains("127.0.0.1"));
        let error = resolve("nosuch0").unwrap_err().to_string();
        assert!(error.starts_with("`nosuch0` is neither"), "{error}");
    }

    #[test]
    fn what_is_covered_already_is_not_named_twice() {
        for list in ["127.0.0.0/8, ::/0, lo", "lo,127.0.0.0/8,::/0", "lo,lo"] {
            let resolved = resolve(list).unwrap();
            assert_eq!(resolved.matches("127.0.0.").count(), 1, "{resolved}");
            assert!(text::prefixes(&resolved).is_ok(), "{resolved}");
        }
    }

    /// At the start of a machine, before it has its addresses.
    #[test]
    fn what_has_no_address_yet_stands_for_none() {
        let of = |list: &str| {
            let mut absent = Vec::new();
            let resolved = resolve_present(list, |e| absent.push(e.to_string())).unwrap();
            (resolved, absent.len())
        };
        assert_eq!(of("10.0.0.0/8, nosuch0,::1"), ("10.0.0.0/8,::1".into(), 1));
        assert_eq!(of("nosuch0,nosuch1"), (NOBODYS.into(), 2));
        assert_eq!(of(""), ("".into(), 0));
        assert_eq!(of("all"), ("all".into(), 0));
        // What cannot be an interface is for whoever reads addresses to refuse.
        for wrong in ["10.0.0.0/33", "not an interface", "much-too-long-for-one"] {
            assert_eq!(of(wrong), (wrong.into(), 0));
        }
    }
}
