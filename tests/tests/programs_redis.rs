//! redis-server with redis-benchmark and redis-cli: rates aside, data is right, and the payload,
//! as the server itself counted it, left TCP. Also through BGSAVE, under the restrictions of
//! Debian's unit, and with the library on one end only.

use anyhow::{Result, ensure};
use smcr_tests::apps::{LONG, PORT, Redis, info, noise};
use smcr_tests::library;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program, which};
use smcr_tests::share::{lo_share, measure};
use smcr_tests::twice::compile_with;

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

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

/// The start of a command line under systemd's restrictions on Debian's redis-server.service, by another uid in a user namespace. The
/// library is seen as `place`; the directory in which the program is started, as its data.
fn confined(place: &str, more: &[&str], uid: &str) -> Result<Vec<String>> {
    let confine = compile_with("cc", "confine", &["confine.c", "confine_view.c"], &["-O1"])?;
    let mut line = vec![confine.display().to_string()];
    line.extend(["-d", ".", "-l", &library::path().display().to_string(), place].map(String::from));
    line.extend(more.iter().chain([&uid]).map(|word| word.to_string()));
    Ok(line)
}

const UID: &str = "12345";
/// Where the package puts the library, and where `make install` does.
const PACKAGED: &str = "/usr/lib/x86_64-linux-gnu/libsmcr.so";
const COPIED: &str = "/usr/local/lib/libsmcr.so";

fn start_confined<'a>(net: &'a Net, load: Load, line: &[String]) -> Result<Redis<'a>> {
    Redis::start_with(net, load, &line.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Whether root may make that unit's files and users here: not in a container that is a user namespace.
fn can_confine() -> Result<bool> {
    let (net, line) = (Net::new()?, confined(PACKAGED, &[], UID)?);
    let ended = Program::new(&net, Load::Native, &line[0]).args(&line[1..]).args(["/usr/bin/true"]).run()?;
    if !ended.status.success() {
        println!("left out: the unit's view can't be made here: {ended}");
    }
    Ok(ended.status.success())
}

/// The unit's ExecPaths have the place where the package puts the library. Who is not root has what needs no other users: he is the
/// only one of his namespace, and 0 there.
#[test]
fn under_the_units_restrictions() -> Result<()> {
    if is_root() && !can_confine()? {
        return Ok(());
    }
    let line = confined(PACKAGED, &[], if is_root() { UID } else { "0" })?;
    lo_share("redis, confined", |net, load| {
        let redis = start_confined(net, load, &line)?;
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", redis.pid()))?;
        ensure!(!is_root() || maps.contains(PACKAGED) == (load != Load::Native), "{maps}");
        let payload = benchmark(&redis, &["-c", "10", "-n", "40000", "-d", "200", "-t", "set,get"])?;
        let value = noise(5, 50_000);
        redis.set("v", &value)?;
        ensure!(redis.get("v")? == value);
        ensure!(redis.cli(&["save"])?.trim() == "OK" && redis.dir.path().join("dump.rdb").metadata()?.len() > 50_000);
        redis.stop()?;
        Ok(payload)
    })
}

/// The restrictions are there: what a shell may do that is started in the same way.
#[test]
fn the_units_restrictions_hold() -> Result<()> {
    if !is_root() || !can_confine()? {
        return Ok(());
    }
    const TRIES: &str = "(cd /tmp && echo * && : > x) && echo has it; echo /dev/* /proc/[0-9]*; (: > /etc/x); (/usr/bin/true) && echo executes
        (cd /home) && echo home; (read a < /proc/kallsyms) && echo kernel; umask
        while read a b; do case $a in CapBnd:|NoNewPrivs:|Seccomp:) echo $a $b;; esac; done < /proc/self/status";
    let (net, line) = (Net::new()?, confined(PACKAGED, &[], UID)?);
    let dir = tempfile::TempDir::new()?;
    let shell = Program::new(&net, Load::Library, &line[0]).args(&line[1..]).args(["/usr/bin/dash", "-c", TRIES]).dir(dir.path()).start()?;
    let own = format!("/dev/fd /dev/full /dev/null /dev/random /dev/shm /dev/urandom /dev/zero /proc/{}", shell.pid());
    let ended = shell.wait(LONG)?;
    let wanted = ["*", "has it", &own, "0007", "CapBnd: 0000000000000000", "NoNewPrivs: 1", "Seccomp: 2"];
    ensure!(ended.out.lines().eq(wanted) && ended.err.contains("/etc/x: Read-only file system"), "{ended}");
    Ok(())
}

/// Below /usr/local the library is not executable for that unit, which then is as without it, until a drop-in says ExecPaths=.
#[test]
fn where_the_unit_may_not_execute() -> Result<()> {
    if !is_root() || !can_confine()? {
        return Ok(());
    }
    let net = Net::new()?;
    let redis = start_confined(&net, Load::Library, &confined(COPIED, &[], UID)?)?;
    let share = measure(&net, || benchmark(&redis, &["-c", "10", "-n", "20000", "-d", "200", "-t", "set,get"]))?;
    share.ensure_on_tcp("a library that may not be executed")?;
    redis.stop()?;
    let line = confined(COPIED, &["-x", COPIED], UID)?;
    lo_share("redis, confined, ExecPaths=", |net, load| {
        let redis = start_confined(net, load, &line)?;
        let payload = benchmark(&redis, &["-c", "10", "-n", "40000", "-d", "200", "-t", "set,get"])?;
        redis.stop()?;
        Ok(payload)
    })
}

/// A client that is confined in the same way, each end with files and users of its own. It makes connections, so it needs AF_NETLINK;
/// of another user than the server it is one of those that nobody can tell apart from there, unless the server sees all users.
#[test]
fn a_confined_client() -> Result<()> {
    if !is_root() || !can_confine()? {
        return Ok(());
    }
    const OTHER: &str = "12346";
    let program = which("redis-benchmark")?.display().to_string();
    let run = |net: &Net, load: Load, server: &[String], uid: &str, more: &[&str]| -> Result<u64> {
        let redis = start_confined(net, load, server)?;
        let before = redis.payload()?;
        let dir = tempfile::TempDir::new()?;
        let line = confined(PACKAGED, more, uid)?;
        let out = Program::new(net, load, "env")
            .args([if more.is_empty() || uid == OTHER && !server.is_empty() { "SMCR_STRICT=0" } else { "--" }])
            .args(&line)
            .args([&program, "-p", &PORT.to_string(), "--csv", "-c", "10", "-n", "40000", "-d", "200", "-t", "set,get"])
            .dir(dir.path())
            .run_ok()?;
        ensure!(out.lines().count() >= 2, "no results: {out}");
        let payload = redis.payload()? - before;
        redis.stop()?;
        Ok(payload)
    };
    let server = confined(PACKAGED, &[], UID)?;
    lo_share("redis, both confined", |net, load| run(net, load, &server, UID, &["-n"]))?;
    lo_share("redis, client confined", |net, load| run(net, load, &[], OTHER, &["-n"]))?;
    let lenient = [&["env".into(), "SMCR_STRICT=0".into()], &server[..]].concat();
    for (what, uid, more) in [("no netlink", UID, &[][..]), ("two users", OTHER, &["-n"])] {
        let net = Net::new()?;
        measure(&net, || run(&net, Load::Library, &lenient, uid, more))?.ensure_on_tcp(what)?;
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
