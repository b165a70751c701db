//! The command stats: counters as a table, as JSON, for Prometheus, or as rates.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use smcr_proto::page::COUNTERS;

use crate::baseline::Baseline;
use crate::cli::StatsArgs;
use crate::detail;
use crate::out::{self, Table};
use crate::paths::Places;
use crate::scan::Host;
use crate::totals::{self, Counters, InUse, ProcessTotals, is_gauge};

pub fn run(places: &Places, args: &StatsArgs) -> anyhow::Result<()> {
    if let Some(seconds) = args.interval {
        return repeat(args, seconds);
    }
    let host = Host::scan(&args.who)?;
    let mut processes = totals::collect(&host, &args.who);
    if args.reset {
        Baseline::reset(places, &processes, args.who.is_everybody())?;
        return out::print(&format!(
            "counted from now on: {} processes\n",
            processes.len()
        ));
    }
    if args.prometheus {
        // A scraper must see counters that never go back.
        return out::print(&prometheus(&processes, &totals::in_use(&host, &args.who)));
    }
    let mut since = None;
    if !args.absolute
        && let Some(baseline) = Baseline::load(places)?
    {
        baseline.subtract(&mut processes);
        since = Some(baseline.taken);
    }
    let in_use = totals::in_use(&host, &args.who);
    if args.json {
        return out::json(&as_json(&processes, &in_use, since));
    }
    if host.families.is_empty() {
        out::note(&host.explain_empty());
    }
    out::print(&as_text(&processes, &in_use, since, args.detail))
}

fn as_text(
    processes: &[ProcessTotals],
    in_use: &InUse,
    since: Option<u64>,
    detailed: bool,
) -> String {
    let mut text = format!("processes with the library  {}\n", processes.len());
    for (title, counts) in [("state", &in_use.state), ("mode", &in_use.mode)] {
        let words: Vec<_> = counts
            .iter()
            .map(|(word, n)| format!("{word} {n}"))
            .collect();
        if !words.is_empty() {
            let _ = writeln!(text, "sockets by {title:<17}{}", words.join(", "));
        }
    }
    text += match since {
        Some(_) => "\ncounters since the last reset (-a shows all)\n",
        None => "\ncounters since the start of the processes\n",
    };
    text += &counter_table(&totals::sum(processes));
    if detailed {
        text += &detail::text(processes, in_use);
    }
    text
}

fn counter_table(counters: &Counters) -> String {
    let mut table = Table::new(&["  Counter", ">Value", "Meaning"]);
    for (i, ((name, help), value)) in COUNTERS.iter().zip(counters).enumerate() {
        if detail::is_size(i) {
            continue;
        }
        table.row(vec![
            format!("  {name}"),
            value.to_string(),
            help.to_string(),
        ]);
    }
    table.render()
}

fn as_json(processes: &[ProcessTotals], in_use: &InUse, since: Option<u64>) -> Value {
    let each = processes.iter().map(|p| {
        json!({
            "pid": p.pid, "own_pid": p.own_pid, "uid": p.uid, "start": p.start, "program": p.name,
            "library": p.version, "enabled": p.enabled, "counters": named(&p.counters),
            "ended_on_tcp": by_name(&p.ended),
        })
    });
    let users = detail::by_user(processes)
        .into_iter()
        .map(|(uid, of_user)| {
            json!({
                "uid": uid, "processes": of_user.len(), "counters": named(&totals::sum(&of_user)),
                "ended_on_tcp": by_name(&totals::ended(&of_user)),
            })
        });
    json!({
        "since": since,
        "sockets": in_use,
        "totals": named(&totals::sum(processes)),
        "ended_on_tcp": by_name(&totals::ended(processes)),
        "users": users.collect::<Vec<_>>(),
        "processes": each.collect::<Vec<_>>(),
    })
}

fn named(counters: &Counters) -> Map<String, Value> {
    let pairs = COUNTERS.iter().zip(counters);
    pairs
        .map(|((name, _), value)| (name.to_string(), json!(value)))
        .collect()
}

/// Reasons by their names.
fn by_name(ended: &BTreeMap<u32, u64>) -> Map<String, Value> {
    let pairs = ended.iter();
    pairs
        .map(|(code, n)| (totals::reason_word(*code), json!(n)))
        .collect()
}

fn prometheus(processes: &[ProcessTotals], in_use: &InUse) -> String {
    let mut text = String::new();
    for (i, (name, help)) in COUNTERS.iter().enumerate() {
        let (kind, suffix) = if is_gauge(i) {
            ("gauge", "")
        } else {
            ("counter", "_total")
        };
        let _ = writeln!(text, "# HELP smcr_{name}{suffix} {help}");
        let _ = writeln!(text, "# TYPE smcr_{name}{suffix} {kind}");
        for p in processes {
            let pid = p.pid.unwrap_or(p.own_pid);
            let value = p.counters.get(i).copied().unwrap_or(0);
            let program = label(&p.name);
            let _ = writeln!(
                text,
                "smcr_{name}{suffix}{{pid=\"{pid}\",program=\"{program}\"}} {value}"
            );
        }
    }
    text += "# HELP smcr_ended_on_tcp_total connections that ended on TCP by reason\n";
    text += "# TYPE smcr_ended_on_tcp_total counter\n";
    for p in processes {
        let (pid, program) = (p.pid.unwrap_or(p.own_pid), label(&p.name));
        for (code, n) in &p.ended {
            let reason = label(&totals::reason_word(*code));
            let _ = writeln!(
                text,
                "smcr_ended_on_tcp_total{{pid=\"{pid}\",program=\"{program}\",reason=\"{reason}\"}} {n}"
            );
        }
    }
    for (kind, counts) in [
        ("state", &in_use.state),
        ("mode", &in_use.mode),
        ("reason", &in_use.reason),
    ] {
        let _ = writeln!(
            text,
            "# HELP smcr_sockets_by_{kind} sockets in use by {kind}"
        );
        let _ = writeln!(text, "# TYPE smcr_sockets_by_{kind} gauge");
        for (word, n) in counts {
            let _ = writeln!(
                text,
                "smcr_sockets_by_{kind}{{{kind}=\"{}\"}} {n}",
                label(word)
            );
        }
    }
    text
}

/// A value of a label, with what the format wants escaped.
fn label(text: &str) -> String {
    out::clean(text).replace('\\', "\\\\").replace('"', "\\\"")
}

/// Prints rates until the count is reached or somebody stops us.
fn repeat(args: &StatsArgs, seconds: u32) -> anyhow::Result<()> {
    let snapshot = || -> anyhow::Result<(Instant, Counters)> {
        let host = Host::scan(&args.who)?;
        Ok((
            Instant::now(),
            totals::sum(&totals::collect(&host, &args.who)),
        ))
    };
    let mut before = snapshot()?;
    let mut left = args.count;
    while left != Some(0) {
        sleep(Duration::from_secs(seconds.into()));
        let now = snapshot()?;
        let elapsed = (now.0 - before.0).as_secs_f64();
        // A process that ended takes its counters with it: no rate then, rather than a wrong one.
        let rate = |i: usize| now.1[i].saturating_sub(before.1[i]) as f64 / elapsed;
        if args.json {
            let mut object = Map::new();
            for (i, (name, _)) in COUNTERS.iter().enumerate() {
                let value = if is_gauge(i) {
                    json!(now.1[i])
                } else {
                    json!(rate(i))
                };
                object.insert(name.to_string(), value);
            }
            out::print(&format!(
                "{}\n",
                json!({ "seconds": elapsed, "rates": object })
            ))?;
        } else {
            let mut table = Table::new(&["Counter", ">Per second", ">Now"]);
            for (i, (name, _)) in COUNTERS.iter().enumerate() {
                let per_second = if is_gauge(i) {
                    "-".into()
                } else {
                    out::rate(rate(i))
                };
                if args.detail || is_gauge(i) || now.1[i] != before.1[i] {
                    table.row(vec![name.to_string(), per_second, now.1[i].to_string()]);
                }
            }
            out::print(&(table.render() + "\n"))?;
        }
        before = now;
        left = left.map(|n| n - 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_escapes_and_types() {
        let process = ProcessTotals {
            pid: Some(7),
            own_pid: 7,
            start: 1,
            name: "a\"b\\c\n".into(),
            version: String::new(),
            enabled: true,
            uid: Some(0),
            ended: [(2, 3)].into(),
            counters: [1; COUNTERS.len()],
        };
        let text = prometheus(&[process], &InUse::default());
        assert!(text.contains("smcr_sockets_total{pid=\"7\",program=\"a\\\"b\\\\c?\"} 1\n"));
        let ended =
            "smcr_ended_on_tcp_total{pid=\"7\",program=\"a\\\"b\\\\c?\",reason=\"disabled\"} 3\n";
        assert!(text.contains(ended), "{text}");
        assert!(text.contains("# TYPE smcr_memory gauge\nsmcr_memory{"));
    }
}
