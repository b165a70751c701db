//! The command stats: counters as a table, as JSON, for Prometheus (`prometheus`), or as rates.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use smcr_proto::page::COUNTERS;

use crate::baseline::Baseline;
use crate::cli::StatsArgs;
use crate::detail;
use crate::linkgroup;
use crate::out::{self, Table};
use crate::paths::Places;
use crate::prometheus;
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
        return out::print(&format!("counted from now on: {} processes\n", processes.len()));
    }
    if args.prometheus {
        // A scraper must see counters that never go back.
        let groups = linkgroup::of_host(&host, &args.who);
        return out::print(&prometheus::text(&processes, &totals::in_use(&host, &args.who), &groups));
    }
    let mut since = None;
    if !args.absolute
        && let Some(baseline) = Baseline::load(places)?
    {
        baseline.subtract(&mut processes, &totals::known(&host));
        since = Some(baseline.taken);
    }
    let in_use = totals::in_use(&host, &args.who);
    let groups = linkgroup::of_host(&host, &args.who);
    if args.json {
        return out::json(&as_json(&processes, &in_use, &groups, since));
    }
    if host.families.is_empty() {
        out::note(&host.explain_empty());
    }
    let mut text = as_text(&processes, &in_use, since);
    if args.detail {
        text += &detail::text(&processes, &in_use, &groups);
    }
    out::print(&text)
}

fn as_text(processes: &[ProcessTotals], in_use: &InUse, since: Option<u64>) -> String {
    let living = processes.iter().filter(|p| p.pid.is_some()).count();
    let mut text = format!("processes with the library  {living}\n");
    for (title, counts) in [("state", &in_use.state), ("mode", &in_use.mode)] {
        let words: Vec<_> = counts.iter().map(|(word, n)| format!("{word} {n}")).collect();
        if !words.is_empty() {
            let _ = writeln!(text, "sockets by {title:<17}{}", words.join(", "));
        }
    }
    text += match since {
        Some(_) => "\ncounters since the last reset (-a shows all)\n",
        None => "\ncounters since the start of the processes\n",
    };
    text + &counter_table(&totals::sum(processes))
}

fn counter_table(counters: &Counters) -> String {
    let mut table = Table::new(&["  Counter", ">Value", "Meaning"]);
    for (i, ((name, help), value)) in COUNTERS.iter().zip(counters).enumerate() {
        if detail::is_size(i) {
            continue;
        }
        table.row(vec![format!("  {name}"), value.to_string(), help.to_string()]);
    }
    table.render()
}

fn as_json(processes: &[ProcessTotals], in_use: &InUse, groups: &[detail::Group<'_>], since: Option<u64>) -> Value {
    let sum = totals::sum(processes);
    let each = processes.iter().map(|p| {
        json!({
            "pid": p.pid, "own_pid": p.own_pid, "uid": p.uid, "start": p.start, "program": p.name,
            "library": p.version, "enabled": p.enabled, "counters": named(&p.counters),
            "ended_on_tcp": by_name(&p.ended),
        })
    });
    let users = detail::by_user(processes).into_iter().map(|(uid, of_user)| {
        json!({
            "uid": uid, "processes": of_user.len(), "counters": named(&totals::sum(&of_user)),
            "ended_on_tcp": by_name(&totals::ended(&of_user)),
        })
    });
    json!({
        "since": since,
        "sockets": in_use,
        "totals": named(&sum),
        "transports": totals::transports(&sum, in_use),
        "linkgroups": linkgroup::all_as_json(groups),
        "devices": linkgroup::by_device(groups),
        "ended_on_tcp": by_name(&totals::ended(processes)),
        "users": users.collect::<Vec<_>>(),
        "processes": each.collect::<Vec<_>>(),
    })
}

fn named(counters: &Counters) -> Map<String, Value> {
    let pairs = COUNTERS.iter().zip(counters);
    pairs.map(|((name, _), value)| (name.to_string(), json!(value))).collect()
}

/// Reasons by their names.
fn by_name(ended: &BTreeMap<u32, u64>) -> Map<String, Value> {
    let pairs = ended.iter();
    pairs.map(|(code, n)| (totals::reason_word(*code), json!(n))).collect()
}

/// Prints rates until the count is reached or somebody stops us.
fn repeat(args: &StatsArgs, seconds: u32) -> anyhow::Result<()> {
    let snapshot = || -> anyhow::Result<_> {
        let host = Host::scan(&args.who)?;
        let processes = totals::collect(&host, &args.who);
        Ok((Instant::now(), totals::by_family(&processes), totals::sum(&processes)))
    };
    let mut before = snapshot()?;
    let mut left = args.count;
    while left != Some(0) {
        sleep(Duration::from_secs(seconds.into()));
        let now = snapshot()?;
        let elapsed = (now.0 - before.0).as_secs_f64();
        let gained = totals::gained(&before.1, &now.1);
        let rate = |i: usize| gained[i] as f64 / elapsed;
        if args.json {
            let mut object = Map::new();
            for (i, (name, _)) in COUNTERS.iter().enumerate() {
                let value = if is_gauge(i) { json!(now.2[i]) } else { json!(rate(i)) };
                object.insert(name.to_string(), value);
            }
            out::print(&format!("{}\n", json!({ "seconds": elapsed, "rates": object })))?;
        } else {
            let mut table = Table::new(&["Counter", ">Per second", ">Now"]);
            for (i, (name, _)) in COUNTERS.iter().enumerate() {
                let per_second = if is_gauge(i) { "-".into() } else { out::rate(rate(i)) };
                if args.detail || is_gauge(i) || rate(i) > 0.0 {
                    table.row(vec![name.to_string(), per_second, now.2[i].to_string()]);
                }
            }
            out::print(&(table.render() + "\n"))?;
        }
        before = now;
        left = left.map(|n| n - 1);
    }
    Ok(())
}
