//! The long run: streams whose ends die, pause, are drained and switched off and on, redis and nginx under
//! load with clients and workers that die, with checksums, for as long as asked; then the figures.
//! `make soak SECS=600 SEED=1`. Without SMCR_SOAK_SECS it does nothing.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use smcr_tests::apps::{LONG, Nginx, PORT, Redis, noise, signal, wrk};
use smcr_tests::census::{self, Census};
use smcr_tests::dice::{self, Dice};
use smcr_tests::library;
use smcr_tests::mill::{Death, MODES, Mill, Plan, Who};
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program};
use tempfile::TempDir;

const LINES: usize = 8;

#[derive(Default, Debug)]
struct Figures {
    deaths: u64,
    pauses: u64,
    drains: u64,
    toggles: u64,
    bytes: u64,
    benchmarks: u64,
    fetches: u64,
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
        let smcrctl = match std::env::var_os("SMCR_CTL") {
            Some(path) => path.into(),
            None => library::build("smcr-admin", "smcrctl")?,
        };
        Ok(Control { dir, smcrctl })
    }

    fn env(&self) -> [(String, String); 3] {
        let at = |name: &str| self.dir.path().join(name).display().to_string();
        [
            ("XDG_RUNTIME_DIR".into(), at("run")),
            ("HOME".into(), at("home")),
            ("XDG_CONFIG_HOME".into(), at("home")),
        ]
    }

    fn run(&self, net: &Net, args: &[&str]) -> Result<()> {
        let mut program = Program::new(net, Load::Native, &self.smcrctl).args(args);
        for (name, value) in self.env() {
            program = program.env(&name, value);
        }
        program.run_ok().map(drop)
    }
}

/// Some rounds of one mill; the survivor's holdings are compared.
fn streams(dice: &mut Dice, control: &Control, figures: &mut Figures) -> Result<()> {
    let net = Net::new()?;
    let victim = *dice.pick(&[Who::Client, Who::Server]);
    let survivor = victim.other();
    let env = control.env().map(|(name, value)| (None, name, value));
    let plan = Plan {
        client: (Load::Library, dice.pick(&MODES).to_string()),
        server: (Load::Library, dice.pick(&MODES).to_string()),
        lines: LINES,
        seed: dice.roll(1_000_000),
        env: env.to_vec(),
    };
    let what = format!("{victim:?} of {plan:?}");
    let mut mill = Mill::new(&net, plan)?;
    mill.begin()?;
    mill.await_moved(1_000_000)?;
    mill.end().with_context(|| what.clone())?;
    let before = Census::of(mill.pid(survivor)?)?;
    for _ in 0..8 {
        mill.begin()?;
        if dice.roll(4) > 0 {
            mill.await_moved(dice.roll(2_000_000)).with_context(|| what.clone())?;
        }
        match dice.roll(8) {
            0 => {
                mill.pause(*dice.pick(&[victim, survivor]), Duration::from_millis(dice.roll(50)))
                    .with_context(|| what.clone())?;
                figures.pauses += 1;
            }
            1 => {
                control.run(&net, &["drain", "all", "--user", "--no-wait"])?;
                figures.drains += 1;
            }
            2 => {
                control.run(&net, &["disable", "--user"])?;
                std::thread::sleep(Duration::from_millis(dice.roll(100)));
                control.run(&net, &["enable", "--user"])?;
                figures.toggles += 1;
            }
            _ => {}
        }
        let longest = *dice.pick(&[1_000, 20_000, 300_000]);
        std::thread::sleep(Duration::from_micros(dice.roll(longest)));
        if dice.roll(5) == 0 {
            figures.bytes += mill.moved()?;
            mill.end().with_context(|| what.clone())?;
        } else {
            mill.die(victim, *dice.pick(&Death::ALL)).with_context(|| what.clone())?;
            figures.deaths += 1;
            figures.bytes += mill.moved()?;
        }
    }
    mill.begin()?;
    mill.await_moved(1_000_000).with_context(|| what.clone())?;
    mill.end().with_context(|| what.clone())?;
    let after = Census::of(mill.pid(survivor)?)?;
    let leaks = after.leaked_since(&before, 3, 4096);
    figures.leaks.extend(leaks.iter().map(|l| format!("{what}: {l}")));
    Ok(())
}

fn redis(redis: &Redis, value: &[u8], dice: &mut Dice, figures: &mut Figures) -> Result<()> {
    let clients = (1 + dice.roll(50)).to_string();
    let size = *dice.pick(&["10", "500", "20000"]);
    let traffic = redis.benchmark(&["-c", &clients, "-d", size, "-n", "100000000", "-t", "set,get,lpush"])?;
    std::thread::sleep(Duration::from_millis(dice.roll(500)));
    ensure!(redis.get("value")? == value, "another value");
    traffic.signal(Signal::SIGKILL)?;
    traffic.wait(LONG)?;
    redis.cli(&["del", "mylist"])?;
    ensure!(redis.get("value")? == value, "another value");
    figures.deaths += 1;
    figures.benchmarks += 1;
    Ok(())
}

fn nginx(net: &Net, nginx: &Nginx, dice: &mut Dice, figures: &mut Figures) -> Result<()> {
    let (bytes, _) = wrk(net, Load::Library, 16, 1, *dice.pick(&["1k", "64k", "20m"]))?;
    figures.bytes += bytes;
    let master = nginx.master()?;
    let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children"))?;
    let all: Vec<i32> = children.split_whitespace().filter_map(|p| p.parse().ok()).collect();
    if dice.roll(2) == 0 && !all.is_empty() {
        signal(*dice.pick(&all), Signal::SIGKILL)?;
        figures.deaths += 1;
        std::thread::sleep(Duration::from_millis(200));
    }
    nginx.fetch(*dice.pick(&["64k", "20m"]))?;
    figures.fetches += 1;
    Ok(())
}

fn run(seed: u64, time: Duration, figures: &mut Figures) -> Result<()> {
    let mut dice = Dice::new(seed);
    let begin = Instant::now();
    let control = Control::new()?;
    let (files, net_r, net_n) = (census::files(), Net::new()?, Net::new()?);
    control.run(&net_r, &["enable", "--user"])?;
    let server = Redis::start(&net_r, Load::Library)?;
    let value = noise(seed, 300_000);
    server.set("value", &value)?;
    let web = Nginx::start(&net_n, Load::Library, 2, "on")?;
    let mut first = None;
    let mut told = 0;
    while begin.elapsed() < time {
        match dice.roll(4) {
            0 => redis(&server, &value, &mut dice, figures).context("redis")?,
            1 => nginx(&net_n, &web, &mut dice, figures).context("nginx")?,
            _ => streams(&mut dice, &control, figures).context("streams")?,
        }
        // What both are like once they have warmed up.
        if first.is_none() && figures.benchmarks >= 3 && figures.fetches >= 3 {
            first = Some((Census::of(server.pid())?, Census::of(web.master()?)?));
        }
        if begin.elapsed().as_secs() / 30 > told {
            told = begin.elapsed().as_secs() / 30;
            println!("{} s: {figures:?}", begin.elapsed().as_secs());
        }
    }
    if let Some((of_server, of_web)) = first {
        let last = Census::of(server.pid())?;
        figures.leaks.extend(last.leaked_since(&of_server, 8, 100_000).iter().map(|l| format!("redis-server {l}")));
        let last = Census::of(web.master()?)?;
        figures.leaks.extend(last.leaked_since(&of_web, 3, 8192).iter().map(|l| format!("nginx {l}")));
    }
    server.stop()?;
    web.stop()?;
    ensure!(figures.leaks.is_empty(), "leaks: {:?}", figures.leaks);
    ensure!(census::files() == files, "files are left: {:?}", census::files());
    Ok(())
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
    println!("{figures:#?}");
    result.with_context(|| format!("SEED={seed}"))
}
