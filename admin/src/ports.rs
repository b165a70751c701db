//! Adding port ranges to a list and taking them out, used by `port-range`.

use smcr_proto::control::PortRange;
use smcr_proto::control::list::Ports;
use smcr_proto::control::text;

use crate::fail::usage;

/// The list with more ranges, in order, neighbours kept apart as they were written.
pub fn add(old: &Ports, text: &str) -> anyhow::Result<Ports> {
    let more = some(text)?;
    for range in more.iter() {
        if let Some(other) = old.iter().find(|r| r.overlaps(*range)) {
            return Err(usage(format!("`{range}`: {other} is in the list already")));
        }
    }
    collect(old.iter().chain(more.iter()).copied())
}

/// The list without these ports, which must all be in it.
pub fn del(old: &Ports, text: &str) -> anyhow::Result<Ports> {
    let gone = some(text)?;
    if old.is_empty() {
        return Err(usage("the list is empty, which means every port; smcrctl set port_range_list= gives one, smcrctl disable stops all"));
    }
    let mut left: Vec<PortRange> = old.to_vec();
    for hole in gone.iter() {
        let Some(at) = left.iter().position(|r| r.first <= hole.first && hole.last <= r.last) else {
            return Err(usage(format!("`{hole}` is not in the list; see smcrctl port-range list")));
        };
        let range = left.remove(at);
        left.extend(PortRange::new(range.first, hole.first - 1));
        left.extend(hole.last.checked_add(1).and_then(|f| PortRange::new(f, range.last)));
    }
    if left.is_empty() {
        return Err(usage("the list would be empty, which means every port; smcrctl disable stops all, smcrctl set port_range_list=all allows all"));
    }
    collect(left.into_iter())
}

fn some(text: &str) -> anyhow::Result<Ports> {
    let ports = text::ports(text).map_err(|e| usage(e.to_string()))?;
    if ports.is_empty() {
        return Err(usage(format!("`{text}`: write ports, such as 23 or 1-20,50")));
    }
    Ok(ports)
}

fn collect(ranges: impl Iterator<Item = PortRange>) -> anyhow::Result<Ports> {
    let mut sorted: Vec<_> = ranges.collect();
    sorted.sort_by_key(|r| r.first);
    let mut ports = Ports::new();
    for range in sorted {
        ports.push(range).map_err(|_| usage("more than 64 ranges; join some"))?;
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Ports {
        text::ports(text).unwrap()
    }

    #[test]
    fn ranges_come_and_go() {
        assert_eq!(add(&list("23"), "1-20,50").unwrap(), list("1-20,23,50"));
        assert_eq!(del(&list("1-20,23"), "5-7,23").unwrap(), list("1-4,8-20"));
        assert_eq!(del(&list("1-65535"), "1,65535").unwrap(), list("2-65534"));
    }

    #[test]
    fn mistakes_change_nothing() {
        for (result, word) in [
            (add(&list("1-20"), "15"), "1-20 is in the list already"),
            (add(&list(""), ""), "write ports"),
            (del(&list("1-20"), "30"), "is not in the list"),
            (del(&list("1-20"), "1-20"), "would be empty"),
            (del(&list(""), "1"), "means every port"),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
