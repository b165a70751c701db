//! Programs as a user finds them: the library's own settings, no switch that is made early, and still 95 % of the payload leaves TCP.
//! What goes through TCP before a connection is worth its switch is the same for each, so the jobs are as large as need be.

use anyhow::{Result, ensure};
use smcr_tests::apps::{Nginx, PORT, Redis, noise};
use smcr_tests::library::source_dir;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program};
use smcr_tests::share::lo_share_by_default;
use smcr_tests::streams::{iperf3, memcached, netcat, socat_both_ways, socat_echo};
use smcr_tests::twice::python;
use smcr_tests::wrk::{compared, comparing};

/// No privilege at either end, an address of loopback and two of a network.
#[test]
fn redis() -> Result<()> {
    const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let before = if nix::unistd::geteuid().is_root() { &NOBODY[..] } else { &["env"] };
    for address in ["127.0.0.1", "10.9.8.7", "fd09::7"] {
        lo_share_by_default(&format!("redis, {address}"), |net, load| {
            for added in ["10.9.8.7/24", "fd09::7/64"] {
                Program::new(net, Load::Native, "ip").args(["address", "add", added, "dev", "lo"]).run_ok()?;
            }
            let redis = Redis::start_with(net, load, before)?;
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

#[test]
fn nginx_and_wrk() -> Result<()> {
    for name in ["1k", "64k"] {
        lo_share_by_default(&format!("nginx, wrk, {name}"), |net, load| {
            let nginx = Nginx::start(net, load, 2, "on")?;
            let (payload, errors) = compared(comparing(&nginx, 8, 1, name, None)?)?;
            ensure!(errors == Default::default(), "{errors:?}");
            nginx.stop()?;
            Ok(payload)
        })?;
    }
    Ok(())
}

/// What nginx has put into its socket before both ends have proved themselves, some megabytes, goes through TCP.
#[test]
fn nginx_and_curl() -> Result<()> {
    lo_share_by_default("nginx, curl", |net, load| {
        let nginx = Nginx::start(net, load, 1, "on")?;
        let size = nginx.add_large_file(20)?;
        nginx.fetch("large")?;
        nginx.stop()?;
        Ok(size)
    })
}

#[test]
fn iperf3_parallel() -> Result<()> {
    lo_share_by_default("iperf3 -P 4", |net, load| iperf3(net, load, &["-n", "1G", "-P", "4"]))?;
    lo_share_by_default("iperf3 -P 4 -R", |net, load| iperf3(net, load, &["-n", "1G", "-P", "4", "-R"]))
}

#[test]
fn memcached_small_values() -> Result<()> {
    lo_share_by_default("memcached", memcached)
}

fn python_echo(style: &'static str) -> Result<()> {
    lo_share_by_default(&format!("python, {style}"), |net: &Net, load| {
        let script = source_dir().join("py/rounds.py");
        let port = PORT.to_string();
        let server = Program::new(net, load, python()?).args([&script]).args([style, &port]).start()?;
        net.wait_listen(PORT)?;
        let out = Program::new(net, load, python()?).args([&script]).args(["client", &port, "3", "1000"]).run_ok()?;
        ensure!(!server.stop()?.err.contains("Traceback"));
        Ok(out.trim().parse()?)
    })
}

#[test]
fn python_blocking() -> Result<()> {
    python_echo("blocking")
}

#[test]
fn python_selectors() -> Result<()> {
    python_echo("selectors")
}

#[test]
fn python_asyncio() -> Result<()> {
    python_echo("asyncio")
}

/// Of a stream one way up to 5 MB are under way in TCP before both ends have proved themselves: less would show that alone. Twice as
/// much for who has no way back.
const SIZE: usize = 128 << 20;

#[test]
fn netcat_half_close() -> Result<()> {
    let data = noise(1, 2 * SIZE);
    for from_listener in [false, true] {
        lo_share_by_default(if from_listener { "nc, back" } else { "nc, there" }, |net, load| netcat(net, load, &data, from_listener))?;
    }
    Ok(())
}

#[test]
fn socat_half_close() -> Result<()> {
    let data = noise(2, SIZE);
    lo_share_by_default("socat, echo", |net, load| socat_echo(net, load, &data))?;
    lo_share_by_default("socat, both ways", |net, load| socat_both_ways(net, load, &data, &data, true))
}
