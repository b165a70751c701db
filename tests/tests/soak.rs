//! The long run: streams whose ends die, pause, are drained and switched off and on, redis and nginx under
//! load with clients and workers that die, with checksums, for as long as asked; then the figures.
//! `make soak SECS=600 SEED=1`. Without SMCR_SOAK_SECS it does nothing.

mod soak_streams;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use smcr_tests::apps::{FILES, LONG, Nginx, PORT, Redis, benchmark_ends, info, noise, signal, workers};
use smcr_tests::census::{self, Census, System};
use smcr_tests::dice::{self, Dice};
use smcr_tests::fired::{Event, Fired};
use smcr_tests::library;
use smcr_tests::mill::proofs_unread;
use smcr_tests::net::Net;
use smcr_tests::page::{Page, Pages, Totals};
use smcr_tests::process::{Load, Program, eventually, which};
use soak_streams::streams;
use tempfile::TempDir;

#[derive(Default, Debug)]
struct Figures {
    /// Ends of streams, clients of redis, servers of redis, workers of nginx.
    deaths: [u64; 4],
    pauses: u64,
    drains: u64,
    toggles: u64,
    bytes: u64,
    benchmarks: u64,
    fetches: u64,
    /// Mills of the build with faults, and what it did to them.
    faulty: u64,
    late: u64,
    failed: u64,
    /// What survivors of streams, and servers of redis that died, had in memory.
    streams: Totals,
    servers: Totals,
    leaks: Vec<String>,
}

/// A page of settings of its own, and smcrctl on it.
struct Control {
    dir: TempDir,
    smcrctl: PathBuf,
}

impl Control {
    fn new() -> Result<Control> {
        let dir = TempDir::new()?;
        for name in ["run", "home"] {
            std::fs::create_dir(dir.path().join(name))?;
        }
        Ok(Control { dir, smcrctl: library::smcrctl()? })
    }

    fn env(&self) -> [(String, String); 3] {
        let at = |name: &str| self.dir.path().join(name).display().to_string();
        [("XDG_RUNTIME_DIR".into(), at("run")), ("HOME".into(), at("home")), ("XDG_CONFIG_HOME".into(), at("home"))]
    }

    fn run(&self, net: &Net, args: &[&str]) -> Result<()> {
        let mut program = Program::new(net, Load::Native, &self.smcrctl).args(args);
        for (name, value) in self.env() {
            program = program.env(&name, value);
        }
        program.run_ok().map(drop)
    }

    /// Often nothing, else all connections go back to TCP, or all is off for a moment.
    fn disturb(&self, net: &Net, dice: &mut Dice, figures: &mut Figures) -> Result<()> {
        match dice.roll(8) {
            0 => {
                self.run(net, &["drain", "all", "--user", "--no-wait"])?;
                figures.drains += 1;
            }
            1 => {
                self.run(net, &["disable", "--user"])?;
                std::thread::sleep(Duration::from_millis(dice.roll(100)));
                self.run(net, &["enable", "--user"])?;
                figures.toggles += 1;
            }
            _ => {}
        }
        Ok(())
    }
}

fn redis(redis: &Redis, value: &[u8], control: &Control, dice: &mut Dice, figures: &mut Figures) -> Result<()> {
    for _ in 0..3 {
        let clients = (1 + dice.roll(50)).to_string();
        let size = *dice.pick(&["10", "500", "20000"]);
        let traffic = redis.benchmark(&["-c", &clients, "-d", size, "-n", "100000000", "-t", "set,get,lpush"])?;
        std::thread::sleep(Duration::from_millis(dice.roll(500)));
        control.disturb(redis.net, dice, figures)?;
        ensure!(redis.get("value")? == value, "another value");
        traffic.signal(Signal::SIGKILL)?;
        traffic.wait(LONG)?;
        redis.cli(&["del", "mylist"])?;
        ensure!(redis.get("value")? == value, "another value");
        figures.deaths[1] += 1;
        figures.bytes += 2 * value.len() as u64;
        figures.benchmarks += 1;
    }
    Ok(())
}

/// A server of its own dies under load; its clients end.
fn redis_server(dice: &mut Dice, figures: &mut Figures) -> Result<()> {
    let net = Net::new()?;
    let server = Redis::start(&net, Load::Library)?;
    let blocked = Program::new(&net, Load::Library, which("redis-cli")?).args(["-p", &PORT.to_string(), "blpop", "list", "0"]).start()?;
    let clients = (1 + dice.roll(50)).to_string();
    let traffic = server.benchmark(&["-c", &clients, "-n", "100000000", "-t", "set,get"])?;
    std::thread::sleep(Duration::from_millis(dice.roll(300)));
    let page = Page::of(server.pid())?;
    signal(server.pid(), Signal::SIGKILL)?;
    blocked.wait(LONG).context("a client of a server that died")?;
    benchmark_ends(traffic)?;
    figures.deaths[2] += 1;
    figures.servers += page.map_or(Ok(Totals::default()), |page| page.totals())?;
    drop(server);
    census::await_no_names(&net)
}

fn nginx(nginx: &Nginx, pages: &mut Pages, control: &Control, dice: &mut Dice, figures: &mut Figures) -> Result<()> {
    let traffic = Program::new(nginx.net, Load::Library, which("wrk")?)
        .args(["-t", "1", "-c", "16", "-d", "2s"])
        .args([format!("http://127.0.0.1:{PORT}/{}", dice.pick(&["1k", "64k", "20m"]))])
        .start()?;
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(dice.roll(400)));
        control.disturb(nginx.net, dice, figures)?;
        let all = workers(nginx.master()?)?;
        all.iter().try_for_each(|pid| pages.keep(*pid))?;
        // It may have ended by itself in between.
        if !all.is_empty() && signal(*dice.pick(&all), Signal::SIGKILL).is_ok() {
            figures.deaths[3] += 1;
        }
    }
    let ended = traffic.wait(LONG)?;
    ensure!(ended.status.success() && !ended.out.contains("Non-2xx"), "{ended}");
    eventually("two workers", || Ok(workers(nginx.master()?)?.len() == 2))?;
    for _ in 0..2 {
        let (name, size) = dice.pick(&FILES[1..]);
        nginx.fetch(name)?;
        figures.fetches += 1;
        figures.bytes += *size as u64;
    }
    workers(nginx.master()?)?.iter().try_for_each(|pid| pages.keep(*pid))?;
    Ok(())
}

/// What lives all the time, and what it holds now.
struct Sample {
    redis: Census,
    master: Census,
    workers: usize,
    /// What redis-server and nginx have had in memory until now.
    moved: [Totals; 2],
    names: [usize; 2],
    system: System,
    /// Allocated in redis-server, but not by redis (bytes).
    foreign: u64,
    /// Anonymous memory of redis-server outside its allocator (KiB).
    outside: u64,
}

impl Sample {
    fn take(server: &Redis, web: &Nginx, pages: &Pages) -> Result<Sample> {
        let master = web.master()?;
        let memory = server.cli(&["info", "memory"])?;
        let redis = Census::of(server.pid())?;
        let mut held = 0;
        for pid in workers(master)? {
            held += Census::of(pid).map_or(0, |c| c.descriptors());
        }
        Ok(Sample {
            foreign: info(&memory, "allocator_allocated")?.saturating_sub(info(&memory, "used_memory")?),
            outside: redis.anonymous.saturating_sub(info(&memory, "allocator_resident")? / 1024),
            redis,
            master: Census::of(master)?,
            workers: held,
            moved: [Totals::of(server.pid())?, pages.totals()?],
            names: [census::names(server.net)?, census::names(web.net)?],
            system: System::now(),
        })
    }

    fn show(&self) -> String {
        format!(
            "redis-server: {} KiB ({} B not of redis, {} KiB outside its allocator), {} descriptors, {} regions; \
             nginx: master {} KiB, {} descriptors, {} regions, workers {} descriptors; {:?}; names {:?}; \
             files {}, pinned {}",
            self.redis.anonymous,
            self.foreign,
            self.outside,
            self.redis.descriptors(),
            self.redis.regions,
            self.master.anonymous,
            self.master.descriptors(),
            self.master.regions,
            self.workers,
            self.moved,
            self.names,
            self.system.files.len(),
            self.system.pinned.len(),
        )
    }
}

/// What the last tenth of the samples holds more of than the first tenth: medians, so that one moment does
/// not decide.
fn grown(samples: &[Sample]) -> Vec<String> {
    let part = (samples.len() / 10).max(1);
    let median = |of: &[Sample], what: fn(&Sample) -> u64| {
        let mut all: Vec<u64> = of.iter().map(what).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    type What = (&'static str, fn(&Sample) -> u64, u64);
    let table: [What; 9] = [
        ("descriptors of redis-server", |s| s.redis.descriptors() as u64, 4),
        ("regions of redis-server", |s| s.redis.regions as u64, 0),
        ("bytes that are not of redis in redis-server", |s| s.foreign, 1 << 20),
        ("KiB outside redis-server's allocator", |s| s.outside, 4096),
        ("descriptors of nginx's master", |s| s.master.descriptors() as u64, 2),
        ("regions of nginx's master", |s| s.master.regions as u64, 0),
        ("KiB of nginx's master", |s| s.master.anonymous, 4096),
        ("names of redis", |s| s.names[0] as u64, 0),
        ("names of nginx", |s| s.names[1] as u64, 4),
    ];
    let mut all = Vec::new();
    for (name, what, slack) in table {
        let (first, last) = (median(&samples[..part], what), median(&samples[samples.len() - part..], what));
        let line = format!("{name}: {first} in the first tenth, {last} in the last");
        println!("{line}");
        if last > first + slack {
            all.push(line);
        }
    }
    all
}

fn run(seed: u64, time: Duration, figures: &mut Figures) -> Result<()> {
    let mut dice = Dice::new(seed);
    let control = Control::new()?;
    for (name, value) in control.env() {
        // SAFETY: this test is alone in its program, and the harness beside it reads none of these.
        unsafe { std::env::set_var(name, value) };
    }
    library::with_faults()?; // built before the clock runs
    let fired = Fired::new()?;
    let (begin, system) = (Instant::now(), System::now());
    let (net_r, net_n) = (Net::new()?, Net::new()?);
    control.run(&net_r, &["enable", "--user"])?;
    let server = Redis::start(&net_r, Load::Library)?;
    let value = noise(seed, 300_000);
    server.set("value", &value)?;
    let web = Nginx::start(&net_n, Load::Library, 2, "on")?;
    let (mut samples, mut pages) = (Vec::new(), Pages::default());
    while begin.elapsed() < time {
        match dice.roll(8) {
            0 | 1 => redis(&server, &value, &control, &mut dice, figures).context("redis")?,
            2 => redis_server(&mut dice, figures).context("redis-server")?,
            3 => nginx(&web, &mut pages, &control, &mut dice, figures).context("nginx")?,
            _ => streams(&mut dice, &control, &fired, figures).context("streams")?,
        }
        (figures.late, figures.failed) = (fired.sum(Event::Late)?, fired.sum(Event::Failed)?);
        // Once both have warmed up.
        let due = begin.elapsed().as_secs() / 30 > samples.len() as u64;
        if due && figures.benchmarks >= 3 && figures.fetches >= 3 {
            let sample = Sample::take(&server, &web, &pages)?;
            println!("{} s: {figures:?}\n    {}", begin.elapsed().as_secs(), sample.show());
            samples.push(sample);
        }
    }
    if !samples.is_empty() {
        figures.leaks.extend(grown(&samples));
    }
    // Each benchmark has a connection at least. A short run may have had none.
    let (of_redis, of_nginx) = (Totals::of(server.pid())?, pages.totals()?);
    of_redis.ensure_in_memory("clients of redis", figures.benchmarks / 2, 10_000 * (figures.benchmarks / 2))?;
    of_nginx.ensure_in_memory("clients of nginx", figures.fetches / 4, 10_000 * (figures.fetches / 4))?;
    ensure!(figures.faulty == 0 || figures.late > 0 && figures.failed > 0, "no fault fired: {}", fired.show(Event::Passed)?);
    figures.servers.ensure_in_memory("clients of redis-servers that died", figures.deaths[2] / 2, figures.deaths[2] / 2)?;
    server.stop()?;
    web.stop()?;
    for net in [&net_r, &net_n] {
        census::await_no_names(net)?;
    }
    ensure!(figures.leaks.is_empty(), "leaks: {:?}", figures.leaks);
    system.ensure_same()
}

#[test]
fn soak() -> Result<()> {
    let Some(secs) = std::env::var("SMCR_SOAK_SECS").ok().and_then(|s| s.parse().ok()) else {
        println!("left out: make soak SECS=...");
        return Ok(());
    };
    let seed = dice::seed();
    println!("SEED={seed}, port {PORT}");
    let mut figures = Figures::default();
    let result = run(seed, Duration::from_secs(secs), &mut figures);
    println!("{figures:#?}\nresets for an unread proof: {}", proofs_unread());
    result.with_context(|| format!("SEED={seed}"))
}
