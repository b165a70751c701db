//! Counters in Prometheus' text format, one series for each process. Used by `stats`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use smcr_proto::page::COUNTERS;

use crate::detail::Group;
use crate::linkgroup;
use crate::out;
use crate::totals::{self, InUse, ProcessTotals, is_gauge};

pub fn text(processes: &[ProcessTotals], in_use: &InUse, groups: &[Group<'_>]) -> String {
    let mut text = String::new();
    for (i, (name, help)) in COUNTERS.iter().enumerate() {
        let (kind, suffix) = if is_gauge(i) { ("gauge", "") } else { ("counter", "_total") };
        head(&mut text, &format!("{name}{suffix}"), kind, help);
        for p in processes {
            let value = p.counters.get(i).copied().unwrap_or(0);
            let _ = writeln!(text, "smcr_{name}{suffix}{{{}}} {value}", labels(p));
        }
    }
    head(&mut text, "ended_on_tcp_total", "counter", "connections that ended on TCP by reason");
    for p in processes {
        for (code, n) in &p.ended {
            let reason = label(&totals::reason_word(*code));
            let _ = writeln!(text, "smcr_ended_on_tcp_total{{{},reason=\"{reason}\"}} {n}", labels(p));
        }
    }
    link_groups(&mut text, groups);
    let kinds: [(&str, &BTreeMap<String, u64>); 3] = [("state", &in_use.state), ("mode", &in_use.mode), ("reason", &in_use.reason)];
    for (kind, counts) in kinds {
        head(&mut text, &format!("sockets_by_{kind}"), "gauge", &format!("sockets in use by {kind}"));
        for (word, n) in counts {
            let _ = writeln!(text, "smcr_sockets_by_{kind}{{{kind}=\"{}\"}} {n}", label(word));
        }
    }
    text
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP smcr_{name} {help}\n# TYPE smcr_{name} {kind}");
}

/// Who a series belongs to. One that has ended keeps a name that nobody else has.
fn labels(p: &ProcessTotals) -> String {
    let pid = match p.pid {
        Some(pid) => pid.to_string(),
        None => format!("ended-{}-{}", p.own_pid, p.start),
    };
    let uid = p.uid.map_or(String::new(), |uid| uid.to_string());
    format!("pid=\"{pid}\",uid=\"{uid}\",program=\"{}\"", label(&p.name))
}

fn link_groups(text: &mut String, groups: &[Group<'_>]) {
    head(text, "linkgroup_connections", "gauge", "connections that use a link group");
    let names = |(holder, r): &Group<'_>| {
        let device = label(&linkgroup::text(&r.device));
        format!("pid=\"{}\",linkgroup=\"{}\",device=\"{device}\",port=\"{}\"", holder.pid, linkgroup::lg_id(r), r.port)
    };
    for group in groups {
        let _ = writeln!(text, "smcr_linkgroup_connections{{{}}} {}", names(group), group.1.connections);
    }
    for (what, help, values) in [
        ("bytes", "payload bytes over a link group", (|g| g.1.bytes) as fn(&Group<'_>) -> [u64; 2]),
        ("messages", "messages over a link group", |g| g.1.messages),
    ] {
        head(text, &format!("linkgroup_{what}_total"), "counter", help);
        for group in groups {
            for (way, n) in ["sent", "received"].iter().zip(values(group)) {
                let names = names(group);
                let _ = writeln!(text, "smcr_linkgroup_{what}_total{{{names},way=\"{way}\"}} {n}");
            }
        }
    }
}

/// A value of a label, with what the format wants escaped.
fn label(text: &str) -> String {
    out::clean(text).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_escapes_and_types() {
        let process = ProcessTotals {
            pid: Some(7),
            is_of_the_gone: false,
            family: 1,
            own_pid: 7,
            start: 1,
            name: "a\"b\\c\n".into(),
            version: String::new(),
            enabled: true,
            uid: Some(0),
            ended: [(2, 3)].into(),
            counters: [1; COUNTERS.len()],
        };
        let text = super::text(&[process], &InUse::default(), &[]);
        assert!(text.contains("smcr_sockets_total{pid=\"7\",uid=\"0\",program=\"a\\\"b\\\\c?\"} 1\n"));
        let ended = "smcr_ended_on_tcp_total{pid=\"7\",uid=\"0\",program=\"a\\\"b\\\\c?\",reason=\"disabled\"} 3\n";
        assert!(text.contains(ended), "{text}");
        assert!(text.contains("# TYPE smcr_memory gauge\nsmcr_memory{"));
    }
}
