//! redis-server with redis-benchmark and redis-cli: rates aside, data is right, and the payload,
//! as the server itself counted it, left TCP. Also through BGSAVE, under the restrictions of
//! Debian's unit, and with the library on one end only.

use anyhow::{Result, ensure};
use smcr_tests::apps::{LONG, PORT, Redis, info, noise};
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program, which};
use smcr_tests::share::{lo_share, measure};
use smcr_tests::twice::compile_with;

/// Runs redis-benchmark to its end and returns the payload that the server counted meanwhile.
fn benchmark(redis: &Redis, args: &[&str]) -> Result<u64> {
    let before = redis.payload()?;
    let ended = redis.benchmark(args)?.wait(LONG)?;
    ensure!(ended.status.success() && !ended.out.contains("rror"), "{ended}");
    ensure!(ended.out.lines().count() >= 2, "no results: {ended}");
    Ok(redis.payload()? - before)
}

fn benchmark_share(args: &'static [&'static str]) -> Result<()> {
    lo_share(&args.join(" "), |net, load| {
        let redis = Redis::start(net, load)?;
        let payload = benchmark(&redis, args)?;
        redis.stop()?;
        Ok(payload)
    })
}

#[test]
fn one_client() -> Result<()> {
    benchmark_share(&["-c", "1", "-n", "30000", "-d", "200", "-t", "set,get"])
}

#[test]
fn fifty_clients() -> Result<()> {
    benchmark_share(&["-c", "50", "-n", "60000", "-d", "200", "-t", "set,get,incr,lpush,rpop,sadd"])
}

#[test]
fn pipelines() -> Result<()> {
    benchmark_share(&["-c", "20", "-P", "16", "-n", "200000", "-d", "100", "-t", "set,get,mset"])
}

#[test]
fn large_values() -> Result<()> {
    benchmark_share(&["-c", "8", "-n", "2000", "-d", "200000", "-t", "set,get"])
}

#[test]
fn client_threads() -> Result<()> {
    benchmark_share(&["-c", "20", "--threads", "2", "-n", "60000", "-d", "200", "-t", "set,get"])
}

/// 125 MB of keys through one connection; the server's own digest of them must be the same.
#[test]
fn keys_are_whole() -> Result<()> {
    let mut commands = Vec::new();
    for i in 0..100_000u64 {
        let value = noise(i, 200 + (i as usize * 37) % 2000);
        commands.extend(format!("*3\r\n$3\r\nSET\r\n$6\r\nk{i:05}\r\n${}\r\n", value.len()).bytes());
        commands.extend(value);
        commands.extend(b"\r\n");
    }
    let digests = std::sync::Mutex::new(Vec::new());
    lo_share("redis-cli --pipe", |net, load| {
        let redis = Redis::start(net, load)?;
        let before = redis.payload()?;
        redis.pipe(&commands)?;
        let payload = redis.payload()? - before;
        ensure!(redis.cli(&["dbsize"])?.trim() == "100000");
        digests.lock().expect("digests").push(redis.cli(&["debug", "digest"])?);
        redis.stop()?;
        Ok(payload)
    })?;
    let digests = digests.into_inner().expect("digests");
    ensure!(digests.len() >= 2 && digests.iter().all(|d| *d == digests[0]), "{digests:?}");
    Ok(())
}

/// Values up to 20 MB by redis-cli, each on a connection of its own, in one call there.
#[test]
fn large_values_are_whole() -> Result<()> {
    for load in Load::BOTH {
        let net = Net::new()?;
        let redis = Redis::start(&net, load)?;
        for size in [0usize, 1, 100, 65_535, 65_536, 65_537, 1_000_000, 20 << 20] {
            let value = noise(size as u64, size);
            redis.set("value", &value)?;
            ensure!(redis.get("value")? == value, "another value of {size} bytes came back");
        }
        redis.stop()?;
    }
    Ok(())
}

/// A fork that saves the data set must not send the connections back to TCP, nor harm them.
#[test]
fn through_bgsave() -> Result<()> {
    lo_share("redis through BGSAVE", |net, load| {
        let redis = Redis::start(net, load)?;
        redis.cli(&["debug", "populate", "100000", "filler", "300"])?;
        let before = redis.payload()?;
        let mut traffic = redis.benchmark(&["-c", "20", "-n", "400000", "-d", "400", "-t", "set,get"])?;
        let mut saves = 0;
        while !traffic.gone()? {
            let out = redis.cli(&["bgsave"])?;
            ensure!(out.contains("Background"), "{out}");
            saves += 1;
            while info(&redis.cli(&["info", "persistence"])?, "rdb_bgsave_in_progress")? == 1 {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }
        let ended = traffic.wait(LONG)?;
        ensure!(ended.status.success(), "{ended}");
        let state = redis.cli(&["info", "persistence"])?;
        ensure!(saves > 0 && state.contains("rdb_last_bgsave_status:ok"), "{saves}: {state}");
        ensure!(redis.dir.path().join("dump.rdb").metadata()?.len() > 1_000_000);
        let payload = redis.payload()? - before;
        redis.stop()?;
        Ok(payload)
    })
}

/// systemd's restrictions on Debian's redis-server.service, by another uid in a user namespace.
#[test]
fn under_the_units_restrictions() -> Result<()> {
    let confine = compile_with("cc", "confine", &["confine.c"], &["-O1"])?;
    let confine = confine.to_str().expect("path");
    lo_share("redis, confined", |net, load| {
        let redis = Redis::start_with(net, load, &[confine, "12345"])?;
        let payload = benchmark(&redis, &["-c", "10", "-n", "40000", "-d", "200", "-t", "set,get"])?;
        let value = noise(5, 50_000);
        redis.set("v", &value)?;
        ensure!(redis.get("v")? == value);
        redis.stop()?;
        Ok(payload)
    })
}

/// As a user finds it: no setting, no privilege at either end, an address of loopback and two of a network.
#[test]
fn as_a_user_finds_it() -> Result<()> {
    const UNSET: [&str; 5] = ["env", "-u", "SMCR_SWITCH_OPS", "-u", "SMCR_SWITCH_BYTES"];
    const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let is_root = nix::unistd::geteuid().is_root();
    let before = if is_root { [&NOBODY[..], &UNSET].concat() } else { UNSET.to_vec() };
    for address in ["127.0.0.1", "10.9.8.7", "fd09::7"] {
        lo_share(address, |net, load| {
            for added in ["10.9.8.7/24", "fd09::7/64"] {
                Program::new(net, Load::Native, "ip").args(["address", "add", added, "dev", "lo"]).run_ok()?;
            }
            let redis = Redis::start_with(net, load, &before)?;
            redis.cli(&["config", "set", "bind", "127.0.0.1 10.9.8.7 fd09::7"])?;
            let payload = redis.payload()?;
            let ended = Program::new(net, load, before[0])
                .args(&before[1..])
                .args(["redis-benchmark", "-h", address, "-p", &PORT.to_string(), "--csv"])
                .args(["-c", "10", "-n", "60000", "-d", "200", "-t", "set,get"])
                .run_ok()?;
            ensure!(ended.lines().count() >= 2, "no results: {ended}");
            let payload = redis.payload()? - payload;
            redis.stop()?;
            Ok(payload)
        })?;
    }
    Ok(())
}

/// The library on one end only: everything works, and all of it is TCP.
#[test]
fn one_end_only() -> Result<()> {
    for (server, client) in [(Load::Library, Load::Native), (Load::Native, Load::Library)] {
        let net = Net::new()?;
        let mut redis = Redis::start(&net, server)?;
        redis.load = client;
        let share = measure(&net, || benchmark(&redis, &["-c", "10", "-n", "20000", "-d", "200"]))?;
        share.ensure_on_tcp("one end only")?;
        let value = noise(7, 5 << 20);
        redis.set("v", &value)?;
        ensure!(redis.get("v")? == value);
        redis.stop()?;
    }
    Ok(())
}

/// Publish and subscribe, MONITOR and a blocked BLPOP: connections on which the server speaks
/// first or much later.
#[test]
fn waiting_clients() -> Result<()> {
    for load in Load::BOTH {
        let net = Net::new()?;
        let redis = Redis::start(&net, load)?;
        let cli = |args: &[&str]| Program::new(&net, load, which("redis-cli")?).args(["-p", &PORT.to_string()]).args(args).start();
        let popped = cli(&["blpop", "list", "30"])?;
        let subscribed = cli(&["subscribe", "news"])?;
        smcr_tests::process::eventually("a subscriber", || Ok(redis.cli(&["pubsub", "numsub", "news"])?.trim().ends_with('1')))?;
        for i in 0..50 {
            ensure!(redis.cli(&["publish", "news", &format!("issue {i}")])?.trim() == "1");
        }
        smcr_tests::process::eventually("the last message", || Ok(subscribed.so_far().0.contains("issue 49")))?;
        redis.cli(&["rpush", "list", "element"])?;
        let ended = popped.wait(LONG)?;
        ensure!(ended.out.contains("element"), "{ended}");
        redis.stop()?;
    }
    Ok(())
}
