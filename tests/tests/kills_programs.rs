//! redis and nginx with ends that are killed, crash or are asked to end under load, again and again: whoever survives serves on, gives
//! right bytes, and holds nothing more than before; clients of a server that died end, as natively.
//! `SMCR_TEST_SEED` repeats a run, `SMCR_KILL_ROUNDS` makes it longer.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use smcr_tests::apps::{LONG, Nginx, PORT, Redis, benchmark_ends, info, noise, signal, workers};
use smcr_tests::census::{Census, System, await_no_names};
use smcr_tests::dice::{self, Dice};
use smcr_tests::net::Net;
use smcr_tests::page::{Page, Pages, Totals};
use smcr_tests::process::{Load, Program, Running, eventually, which};

fn rounds() -> u64 {
    std::env::var("SMCR_KILL_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(4)
}

/// Runs a test with a seed that it prints; it leaves nothing in the system.
fn seeded(test: impl FnOnce(&mut Dice) -> Result<()>) -> Result<()> {
    let (seed, system) = (dice::seed(), System::now());
    println!("SMCR_TEST_SEED={seed}");
    test(&mut Dice::new(seed)).and_then(|()| system.ensure_same()).with_context(|| format!("SMCR_TEST_SEED={seed}"))
}

fn a_while(dice: &mut Dice) {
    let longest = *dice.pick(&[3_000, 30_000, 250_000]);
    std::thread::sleep(Duration::from_micros(dice.roll(longest)));
}

/// Ways to end a client: without a word, by a crash, and by what it might answer. (SIGQUIT may be ignored, as whoever runs the tests wished.)
const WAYS: [&[Signal]; 4] = [&[Signal::SIGKILL], &[Signal::SIGSTOP, Signal::SIGKILL], &[Signal::SIGSEGV], &[Signal::SIGTERM]];
/// Ways to end redis-server: it says something at a crash, and closes all connections when it is asked to end.
const SERVER_WAYS: [Signal; 3] = [Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGTERM];
/// Ways to end a worker of nginx: at SIGTERM it leaves at once, at SIGQUIT it serves the requests that it has.
const WORKER_WAYS: [Signal; 4] = [Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGTERM, Signal::SIGQUIT];

/// Ends it in one of these ways, and waits for its end.
fn kill(mut victim: Running, dice: &mut Dice) -> Result<()> {
    let way = *dice.pick(&WAYS);
    for signal in way {
        victim.signal(*signal)?;
        std::thread::sleep(Duration::from_millis(dice.roll(10)));
    }
    victim.await_end(LONG).with_context(|| format!("{way:?}"))
}

fn traffic<'a>(redis: &Redis<'a>, dice: &mut Dice) -> Result<Running<'a>> {
    let clients = (1 + dice.roll(50)).to_string();
    let size = *dice.pick(&["10", "500", "20000", "200000"]);
    let depth = *dice.pick(&["1", "1", "16"]);
    redis.benchmark(&["-c", &clients, "-d", size, "-P", depth, "-n", "100000000", "-t", "set,get,lpush"])
}

#[test]
fn redis_clients_die() -> Result<()> {
    seeded(|dice| {
        let net = Net::new()?;
        let redis = Redis::start(&net, Load::Library)?;
        let value = noise(dice.roll(1000), 300_000);
        redis.set("value", &value)?;
        kill(traffic(&redis, dice)?, dice)?;
        let alone = || eventually("the clients are gone", || Ok(info(&redis.cli(&["info", "clients"])?, "connected_clients")? == 1));
        alone()?;
        let before = Census::of(redis.pid())?;
        for _ in 0..rounds() {
            let one = traffic(&redis, dice)?;
            let other = traffic(&redis, dice)?;
            a_while(dice);
            kill(one, dice)?;
            ensure!(redis.get("value")? == value, "another value");
            a_while(dice);
            kill(other, dice)?;
            ensure!(redis.get("value")? == value, "another value");
            redis.cli(&["del", "mylist", "key:__rand_int__"])?;
        }
        alone()?;
        let after = Census::of(redis.pid())?;
        Totals::of(redis.pid())?.ensure_in_memory("clients of redis", rounds(), 1_000_000)?;
        // Its own memory depends on what was in it.
        let leaks = after.leaked_since(&before, 4, 200_000);
        ensure!(leaks.is_empty(), "redis-server leaks: {leaks:?}\nbefore {before:?}\nafter {after:?}");
        redis.stop()?;
        await_no_names(&net)
    })
}

/// The clients end, with an error, as natively; half of the rounds are native.
#[test]
fn redis_servers_die() -> Result<()> {
    seeded(|dice| {
        let (mut circles, mut totals) = ([0; 2], Totals::default());
        for round in 0..2 * rounds() {
            let load = Load::BOTH[round as usize % 2];
            let net = Net::new()?;
            let redis = Redis::start(&net, load)?;
            let blocked = Program::new(&net, load, which("redis-cli")?).args(["-p", &PORT.to_string(), "blpop", "list", "0"]).start()?;
            let traffic = traffic(&redis, dice)?;
            eventually("a blocked client", || Ok(info(&redis.cli(&["info", "clients"])?, "blocked_clients")? == 1))?;
            a_while(dice);
            let page = Page::of(redis.pid())?;
            // Both in each way, if there are rounds for it.
            let way = SERVER_WAYS[round as usize / 2 % SERVER_WAYS.len()];
            signal(redis.pid(), way)?;
            circles[round as usize % 2] += u32::from(benchmark_ends(traffic).with_context(|| format!("{way}, {load:?}"))?);
            let ended = blocked.wait(LONG).context("redis-cli")?;
            if let Some(page) = page {
                let one = page.totals()?;
                ensure!(load == Load::Library, "a page natively");
                totals += one;
            }
            ensure!(ended.err.contains("closed") || ended.out.contains("closed"), "{way}, {load:?}: {ended}");
            drop(redis);
            await_no_names(&net)?;
        }
        totals.ensure_in_memory("clients of redis-servers", rounds(), 1)?;
        println!("{} deaths each; redis-benchmark ran in circles natively and here: {circles:?}", rounds());
        Ok(())
    })
}

/// Workers die under load, and the master makes new ones; what is fetched is whole.
#[test]
fn nginx_workers_die() -> Result<()> {
    seeded(|dice| {
        let net = Net::new()?;
        let nginx = Nginx::start(&net, Load::Library, 2, "on")?;
        let master = nginx.master()?;
        eventually("two workers", || Ok(workers(master)?.len() == 2))?;
        let (before, mut pages) = (Census::of(master)?, Pages::default());
        for _ in 0..rounds() {
            let file = *dice.pick(&["1k", "64k", "20m"]);
            let wrk = Program::new(&net, Load::Library, which("wrk")?)
                .args(["-t", "1", "-c", "16", "-d", "1s"])
                .args([format!("http://127.0.0.1:{PORT}/{file}")])
                .start()?;
            for _ in 0..3 {
                a_while(dice);
                let all = workers(master)?;
                all.iter().try_for_each(|pid| pages.keep(*pid))?;
                if !all.is_empty() {
                    // It may have ended by itself in between.
                    let _ = signal(*dice.pick(&all), *dice.pick(&WORKER_WAYS));
                }
            }
            let ended = wrk.wait(LONG)?;
            ensure!(ended.status.success() && !ended.out.contains("Non-2xx"), "{ended}");
            eventually("two workers", || Ok(workers(master)?.len() == 2))?;
            nginx.fetch("20m")?;
            workers(master)?.iter().try_for_each(|pid| pages.keep(*pid))?;
        }
        let after = Census::of(master)?;
        pages.totals()?.ensure_in_memory("clients of nginx", rounds(), 1_000_000)?;
        let leaks = after.leaked_since(&before, 3, 8192);
        ensure!(leaks.is_empty(), "the master leaks: {leaks:?}\nbefore {before:?}\nafter {after:?}");
        nginx.stop()?;
        await_no_names(&net)
    })
}

/// Clients of nginx die in the middle of large answers.
#[test]
fn nginx_clients_die() -> Result<()> {
    seeded(|dice| {
        let net = Net::new()?;
        let nginx = Nginx::start(&net, Load::Library, 1, dice.pick::<&str>(&["on", "off"]))?;
        nginx.fetch("20m")?;
        let worker = *workers(nginx.master()?)?.first().context("a worker")?;
        let before = Census::of(worker)?;
        for _ in 0..rounds() {
            let wrk = Program::new(&net, Load::Library, which("wrk")?)
                .args(["-t", "1", "-c", &(1 + dice.roll(30)).to_string(), "-d", "60s"])
                .args([format!("http://127.0.0.1:{PORT}/{}", dice.pick(&["1k", "64k", "20m"]))])
                .start()?;
            a_while(dice);
            kill(wrk, dice)?;
            nginx.fetch("64k")?;
        }
        // Where the worker is not let run meanwhile, all of one goes through TCP.
        eventually("a file goes through memory", || {
            nginx.fetch("20m")?;
            Ok(Totals::of(worker)?.memory > 1_000_000)
        })?;
        Totals::of(worker)?.ensure_in_memory("clients of nginx", 1, 1_000_000)?;
        eventually("the worker has let go", || Ok(Census::of(worker)?.leaked_since(&before, 4, 20_000).is_empty()))
            .with_context(|| format!("before {before:?}\nafter {:?}", Census::of(worker)))?;
        nginx.stop()?;
        await_no_names(&net)
    })
}

/// Either end stands still for a while, as often as there are rounds, and goes on.
fn stand_still(dice: &mut Dice, ends: &[i32]) -> Result<()> {
    for _ in 0..rounds() {
        let pid = *dice.pick(ends);
        a_while(dice);
        signal(pid, Signal::SIGSTOP)?;
        a_while(dice);
        signal(pid, Signal::SIGCONT)?;
    }
    Ok(())
}

#[test]
fn redis_stands_still() -> Result<()> {
    seeded(|dice| {
        let net = Net::new()?;
        let redis = Redis::start(&net, Load::Library)?;
        let value = noise(dice.roll(1000), 300_000);
        redis.set("value", &value)?;
        let endless = traffic(&redis, dice)?;
        stand_still(dice, &[redis.pid(), endless.pid()])?;
        // Another one begins and ends while the first one goes on.
        let whole = redis.benchmark(&["-c", "10", "-n", "30000", "-d", "200", "-t", "set,get"])?;
        stand_still(dice, &[redis.pid(), endless.pid()])?;
        ensure!(redis.get("value")? == value, "another value");
        let ended = whole.wait(LONG)?;
        ensure!(ended.status.success() && !ended.out.contains("rror"), "{ended}");
        kill(endless, dice)?;
        Totals::of(redis.pid())?.ensure_in_memory("clients of redis", 2, 1_000_000)?;
        redis.stop()?;
        await_no_names(&net)
    })
}

#[test]
fn nginx_stands_still() -> Result<()> {
    seeded(|dice| {
        let net = Net::new()?;
        let nginx = Nginx::start(&net, Load::Library, 1, dice.pick::<&str>(&["on", "off"]))?;
        nginx.fetch("20m")?;
        let worker = *workers(nginx.master()?)?.first().context("a worker")?;
        let wrk = Program::new(&net, Load::Library, which("wrk")?)
            .args(["-t", "1", "-c", "16", "-d", "3s", "--timeout", "30s"])
            .args([format!("http://127.0.0.1:{PORT}/{}", dice.pick(&["1k", "64k", "20m"]))])
            .start()?;
        stand_still(dice, &[worker, wrk.pid()])?;
        nginx.fetch("20m")?;
        let ended = wrk.wait(LONG)?;
        ensure!(ended.status.success() && !ended.out.contains("Socket errors") && !ended.out.contains("Non-2xx"), "{ended}");
        Totals::of(worker)?.ensure_in_memory("clients of nginx", 1, 1_000_000)?;
        nginx.stop()?;
        await_no_names(&net)
    })
}
