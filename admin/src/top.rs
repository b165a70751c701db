//! The command top: the busiest processes, drawn anew at every interval.

use std::collections::{BTreeSet, HashMap};
use std::io::IsTerminal;
use std::thread::sleep;
use std::time::{Duration, Instant};

use smcr_proto::page::{Counter, State};
use terminal_size::terminal_size;

use crate::cli::TopArgs;
use crate::out::{self, Table};
use crate::scan::Host;
use crate::totals::{self, Counters, ProcessTotals};

type Key = (u32, u64);
/// The families of processes, and their counters.
type Counted = HashMap<Key, (u64, Counters)>;

pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let mut before: Option<(Instant, Counted)> = None;
    let mut left = args.count;
    let mut wait = Duration::from_millis(300);
    while left != Some(0) {
        let host = Host::scan(&args.who)?;
        let now = Instant::now();
        let processes = totals::collect(&host, &args.who);
        if let Some((then, old)) = &before {
            let seconds = (now - *then).as_secs_f64();
            draw(&view(&host, args, &processes, old, seconds))?;
            left = left.map(|n| n - 1);
            wait = Duration::from_secs(args.interval.into());
        }
        let counters = processes.iter().map(|p| (key(p), (p.family, p.counters)));
        before = Some((now, counters.collect()));
        if left != Some(0) {
            sleep(wait);
        }
    }
    Ok(())
}

/// On a terminal the new view takes the place of the old one, as far as there is room for it.
fn draw(text: &str) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() {
        return out::print(&format!("{text}\n"));
    }
    let size = terminal_size().map_or((80, 24), |(w, h)| (w.0.into(), h.0.into()));
    out::print(&format!("\x1b[H{}\x1b[J", fitted(text, size)))
}

/// The text in so many columns and rows; each line ends what was there before. The last row stays free.
fn fitted(text: &str, (columns, rows): (usize, usize)) -> String {
    let lines = text.lines().take(rows.saturating_sub(1));
    lines.map(|l| l.chars().take(columns).collect::<String>() + "\x1b[K\n").collect()
}

fn view(host: &Host, args: &TopArgs, processes: &[ProcessTotals], old: &Counted, seconds: f64) -> String {
    let mut connections: HashMap<u32, (u64, u64)> = HashMap::new();
    for c in host.connections(&args.who).iter().filter(|c| c.is_live()) {
        let counts = connections.entry(c.user.pid).or_default();
        counts.0 += 1;
        counts.1 += u64::from(c.socket.is(State::Accelerated));
    }
    let known = totals::known(host);
    let mut rows: Vec<Row> = processes.iter().map(|p| Row::new(p, before(p, old, &known), seconds)).collect();
    rows.sort_by(|a, b| b.busy().total_cmp(&a.busy()));
    let mut table = Table::new(&[
        ">PID",
        "Program",
        ">Conns",
        ">Accel",
        ">Mem tx B/s",
        ">Mem rx B/s",
        ">TCP B/s",
        ">Wakes/s",
        ">Sleeps/s",
        ">Spin hit",
        ">Spin CPU",
        ">Wake us",
        ">Full/s",
        ">Memory",
    ]);
    for row in rows.iter().take(args.rows) {
        let (all, accelerated) = row.pid.and_then(|p| connections.get(&p)).copied().unwrap_or_default();
        table.row(row.cells(all, accelerated));
    }
    let (all, accelerated) = connections.values().fold((0, 0), |(a, b), (x, y)| (a + x, b + y));
    format!(
        "smcrctl top: {} processes, {all} connections, {accelerated} accelerated\n\n{}",
        processes.iter().filter(|p| p.pid.is_some()).count(),
        table.render()
    )
}

fn key(p: &ProcessTotals) -> Key {
    (p.own_pid, p.start)
}

/// What a process had counted at the last view. `known`: every process that has a record now.
fn before(p: &ProcessTotals, old: &Counted, known: &BTreeSet<Key>) -> Option<Counters> {
    let mut counters = old.get(&key(p))?.1;
    if p.is_of_the_gone {
        // What was counted by those whose records others have now is in this one.
        let gone = old.iter().filter(|(key, (family, _))| *family == p.family && !known.contains(*key));
        gone.for_each(|(_, (_, more))| totals::add(&mut counters, more));
    }
    Some(counters)
}

struct Row {
    pid: Option<u32>,
    name: String,
    memory: u64,
    per_second: Vec<f64>,
}

impl Row {
    /// Rates since the last view; a process that is new shows none yet.
    fn new(p: &ProcessTotals, old: Option<Counters>, seconds: f64) -> Row {
        let old = old.unwrap_or(p.counters);
        let pairs = p.counters.iter().zip(&old);
        Row {
            pid: p.pid,
            name: out::clean(&p.name),
            memory: p.counters[Counter::Memory as usize],
            per_second: pairs.map(|(a, b)| a.saturating_sub(*b) as f64 / seconds).collect(),
        }
    }

    fn rate(&self, counter: Counter) -> f64 {
        self.per_second.get(counter as usize).copied().unwrap_or(0.0)
    }

    fn tcp(&self) -> f64 {
        self.rate(Counter::TcpTxBytes) + self.rate(Counter::TcpRxBytes)
    }

    fn busy(&self) -> f64 {
        self.rate(Counter::MemTxBytes) + self.rate(Counter::MemRxBytes) + self.tcp()
    }

    fn cells(&self, all: u64, accelerated: u64) -> Vec<String> {
        let (hits, misses) = (self.rate(Counter::SpinHits), self.rate(Counter::SpinMisses));
        let spins = hits + misses;
        vec![
            self.pid.map_or("ended".into(), |p| p.to_string()),
            self.name.clone(),
            all.to_string(),
            accelerated.to_string(),
            out::rate(self.rate(Counter::MemTxBytes)),
            out::rate(self.rate(Counter::MemRxBytes)),
            out::rate(self.tcp()),
            out::rate(self.rate(Counter::EventWakes) + self.rate(Counter::BellsTx)),
            out::rate(self.rate(Counter::Sleeps)),
            if spins > 0.0 { format!("{:.0}%", 100.0 * hits / spins) } else { "-".into() },
            // Microseconds a second, as a share of one processor.
            format!("{:.1}%", self.rate(Counter::SpinTime) / 1e4),
            match self.rate(Counter::WakesTimed) {
                n if n > 0.0 => format!("{:.1}", self.rate(Counter::WakeTime) / n),
                _ => "-".into(),
            },
            out::rate(self.rate(Counter::RingFull)),
            out::bytes(self.memory),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use smcr_proto::page::{COUNTERS, process};

    use super::*;

    /// A child that ended, and whose record serves another, makes no rate of all that it ever did.
    #[test]
    fn what_the_gone_had_done_is_no_rate() {
        let process = |own_pid: u32, sockets: u64| {
            let mut counters = [0; COUNTERS.len()];
            counters[Counter::Sockets as usize] = sockets;
            ProcessTotals {
                pid: None,
                is_of_the_gone: own_pid == process::ENDED,
                family: 1,
                uid: None,
                own_pid,
                start: 1,
                name: "x".into(),
                version: String::new(),
                enabled: true,
                counters,
                ended: BTreeMap::new(),
            }
        };
        let counted = [process(7, 1000), process(8, 50), process(process::ENDED, 5)];
        let old: Counted = counted.iter().map(|p| (key(p), (p.family, p.counters))).collect();
        let now = [process(8, 60), process(process::ENDED, 1009)];
        let known = now.iter().map(key).collect();
        let rates = now.each_ref().map(|p| Row::new(p, before(p, &old, &known), 2.0).rate(Counter::Sockets));
        assert_eq!(rates, [5.0, 2.0]);
    }

    #[test]
    fn a_view_is_cut_to_the_terminal() {
        assert_eq!(fitted("abcdef\ngh\ni\n", (3, 3)), "abc\x1b[K\ngh\x1b[K\n");
        assert_eq!(fitted("a\n", (80, 24)), "a\x1b[K\n");
    }
}
