//! Owns: jobs of iperf3, memcached, netcat and socat that several suites give them; each returns its payload.

use std::fs::{self, File};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::apps::{LONG, PORT};
use crate::library::source_dir;
use crate::net::Net;
use crate::process::{Load, Program, eventually, which};
use crate::twice::python;

/// Runs iperf3 against a server for one test; the bytes that were received.
pub fn iperf3(net: &Net, load: Load, args: &[&str]) -> Result<u64> {
    let port = PORT.to_string();
    let server = Program::new(net, load, which("iperf3")?).args(["-s", "-1", "-p", &port]).start()?;
    net.wait_listen(PORT)?;
    let out = Program::new(net, load, which("iperf3")?).args(["-c", "127.0.0.1", "-J", "-p", &port]).args(args).run_ok()?;
    let ended = server.wait(LONG)?;
    ensure!(ended.status.success(), "{ended}");
    let report: serde_json::Value = serde_json::from_str(&out)?;
    let bytes = |name: &str| report["end"][name]["bytes"].as_u64();
    let both_ways = bytes("sum_received_bidir_reverse").unwrap_or(0);
    Ok(bytes("sum_received").with_context(|| out.clone())? + both_ways)
}

/// memcached and a small client in Python, which compares the values; the payload is what memcached counted.
pub fn memcached(net: &Net, load: Load) -> Result<u64> {
    let port = PORT.to_string();
    let user = if nix::unistd::geteuid().is_root() { &["-u", "nobody"][..] } else { &[] };
    let server =
        Program::new(net, load, which("memcached")?).args(["-l", "127.0.0.1", "-p", &port, "-t", "2", "-U", "0", "-m", "200"]).args(user).start()?;
    net.wait_listen(PORT)?;
    let out = Program::new(net, load, python()?).args([source_dir().join("py/memcached_client.py")]).args([&port]).run_ok()?;
    let payload = out.trim().parse().with_context(|| out.clone())?;
    server.stop()?;
    Ok(payload)
}

/// netcat with a file: the sending end half-closes (-N), the other one reads to the end. Not both ways at once: natively too, this
/// program drops what it still had to send when the peer's end comes first.
pub fn netcat(net: &Net, load: Load, data: &[u8], from_listener: bool) -> Result<u64> {
    let dir = TempDir::new()?;
    let file = dir.path().join("data");
    fs::write(&file, data)?;
    let port = PORT.to_string();
    let end = |args: &[&str], sends: bool| {
        let program = Program::new(net, load, which("nc")?).args([if sends { "-N" } else { "-d" }]).args(args);
        if sends { program.stdin(File::open(&file)?).start() } else { program.start() }
    };
    let mut listener = end(&["-l", "127.0.0.1", &port], from_listener)?;
    net.wait_listen(PORT)?;
    let mut connector = end(&["127.0.0.1", &port], !from_listener)?;
    eventually("both end", || Ok(listener.gone()? && connector.gone()?))?;
    let receiver = if from_listener { &connector } else { &listener };
    ensure!(fs::read(receiver.out_file())? == data, "{:?}", receiver.so_far().1.len());
    Ok(data.len() as u64)
}

/// socat with a file each way at once. `at_last`: the ends half-close when all has come to both; else each one after its own file.
pub fn socat_both_ways(net: &Net, load: Load, there: &[u8], back: &[u8], at_last: bool) -> Result<u64> {
    let dir = TempDir::new()?;
    fs::write(dir.path().join("there"), there)?;
    fs::write(dir.path().join("back"), back)?;
    let all = dir.path().join("all");
    let end = |file: &str, args: &str| {
        let socat = format!("exec {} -t 60 {args}", which("socat")?.display());
        let line = if at_last { format!("{{ cat {file}; until [ -e all ]; do sleep 0.02; done; }} | {socat}") } else { format!("{socat} < {file}") };
        Program::new(net, load, "sh").args(["-c", &line]).dir(dir.path()).start()
    };
    let mut listener = end("back", &format!("TCP4-LISTEN:{PORT},reuseaddr -"))?;
    net.wait_listen(PORT)?;
    let mut connector = end("there", &format!("- TCP4:127.0.0.1:{PORT}"))?;
    if at_last {
        let has = |file: std::path::PathBuf, data: &[u8]| fs::metadata(file).is_ok_and(|m| m.len() == data.len() as u64);
        eventually("all has come", || Ok(has(connector.out_file(), back) && has(listener.out_file(), there)))?;
        fs::write(&all, "")?;
    }
    connector.await_end(LONG)?;
    listener.await_end(LONG)?;
    ensure!(fs::read(connector.out_file())? == back, "{:?}", connector.so_far().1);
    ensure!(fs::read(listener.out_file())? == there, "{:?}", listener.so_far().1);
    Ok((there.len() + back.len()) as u64)
}

/// An echo by socat and cat: the client sends all, half-closes, and gets all. (socat's own PIPE can
/// block on itself.)
pub fn socat_echo(net: &Net, load: Load, there: &[u8]) -> Result<u64> {
    let dir = TempDir::new()?;
    fs::write(dir.path().join("there"), there)?;
    let server = Program::new(net, load, which("socat")?).args(["-t", "60", &format!("TCP4-LISTEN:{PORT},reuseaddr"), "EXEC:cat"]).start()?;
    net.wait_listen(PORT)?;
    let mut client = Program::new(net, load, which("socat")?)
        .args(["-t", "60", "-", &format!("TCP4:127.0.0.1:{PORT}")])
        .stdin(File::open(dir.path().join("there"))?)
        .start()?;
    client.await_end(LONG)?;
    ensure!(fs::read(client.out_file())? == there, "{:?}", client.so_far().1);
    let ended = server.wait(LONG)?;
    ensure!(ended.status.success(), "{ended}");
    Ok(2 * there.len() as u64)
}
