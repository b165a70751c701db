//! iperf3, netcat and socat: streams both ways, several at once, half-closed; memcached: many
//! small values. Where a program gives the bytes out again, they are compared.

use std::fs::{self, File};

use anyhow::{Context, Result, ensure};
use smcr_tests::apps::{LONG, PORT, noise};
use smcr_tests::library::source_dir;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program, which};
use smcr_tests::share::lo_share;
use smcr_tests::twice::python;
use tempfile::TempDir;

/// Runs iperf3 against a server for one test; the bytes that were received.
fn iperf3(net: &Net, load: Load, args: &[&str]) -> Result<u64> {
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

#[test]
fn iperf3_forward() -> Result<()> {
    lo_share("iperf3", |net, load| iperf3(net, load, &["-n", "1G"]))
}

#[test]
fn iperf3_reverse() -> Result<()> {
    lo_share("iperf3 -R", |net, load| iperf3(net, load, &["-n", "1G", "-R"]))
}

#[test]
fn iperf3_parallel() -> Result<()> {
    lo_share("iperf3 -P 4", |net, load| iperf3(net, load, &["-n", "1G", "-P", "4"]))?;
    lo_share("iperf3 -P 4 -R", |net, load| iperf3(net, load, &["-n", "1G", "-P", "4", "-R"]))
}

#[test]
fn iperf3_both_ways_and_small_blocks() -> Result<()> {
    lo_share("iperf3 --bidir", |net, load| iperf3(net, load, &["-t", "1", "--bidir"]))?;
    lo_share("iperf3 -l 200", |net, load| iperf3(net, load, &["-n", "40M", "-l", "200"]))?;
    lo_share("iperf3 -Z", |net, load| iperf3(net, load, &["-n", "500M", "-Z"]))
}

const SIZE: usize = 128 << 20;

/// A file there, and a file back: the sending end half-closes (-N), the other one reads to the end. Not
/// both ways at once: natively too, this program drops what it still had to send when the peer's end
/// comes first.
#[test]
fn netcat_half_close() -> Result<()> {
    let data = noise(1, 2 * SIZE);
    for from_listener in [false, true] {
        lo_share(if from_listener { "nc, back" } else { "nc, there" }, |net, load| {
            let dir = TempDir::new()?;
            let file = dir.path().join("data");
            fs::write(&file, &data)?;
            let port = PORT.to_string();
            let end = |args: &[&str], sends: bool| {
                let program = Program::new(net, load, which("nc")?).args([if sends { "-N" } else { "-d" }]).args(args);
                if sends { program.stdin(File::open(&file)?).start() } else { program.start() }
            };
            let mut listener = end(&["-l", "127.0.0.1", &port], from_listener)?;
            net.wait_listen(PORT)?;
            let mut connector = end(&["127.0.0.1", &port], !from_listener)?;
            smcr_tests::process::eventually("both end", || Ok(listener.gone()? && connector.gone()?))?;
            let receiver = if from_listener { &connector } else { &listener };
            ensure!(fs::read(receiver.out_file())? == data, "{:?}", receiver.so_far().1.len());
            Ok(data.len() as u64)
        })?;
    }
    Ok(())
}

/// A file each way at once, each end half-closing after its own; the shorter one ends first, and from
/// there on the longer one goes through TCP (hazard 4), so only the data is compared.
#[test]
fn socat_both_ways() -> Result<()> {
    let (there, back) = (noise(1, SIZE), noise(2, SIZE / 4));
    for load in Load::BOTH {
        let net = Net::new()?;
        let dir = TempDir::new()?;
        fs::write(dir.path().join("there"), &there)?;
        fs::write(dir.path().join("back"), &back)?;
        let mut listener = Program::new(&net, load, which("socat")?)
            .args(["-t", "60", &format!("TCP4-LISTEN:{PORT},reuseaddr"), "-"])
            .stdin(File::open(dir.path().join("back"))?)
            .start()?;
        net.wait_listen(PORT)?;
        let mut connector = Program::new(&net, load, which("socat")?)
            .args(["-t", "60", "-", &format!("TCP4:127.0.0.1:{PORT}")])
            .stdin(File::open(dir.path().join("there"))?)
            .start()?;
        connector.await_end(LONG)?;
        listener.await_end(LONG)?;
        ensure!(fs::read(connector.out_file())? == back, "{:?}", connector.so_far().1);
        ensure!(fs::read(listener.out_file())? == there, "{:?}", listener.so_far().1);
    }
    Ok(())
}

/// An echo by socat and cat: the client sends all, half-closes, and gets all. (socat's own PIPE can
/// block on itself.)
#[test]
fn socat_echo() -> Result<()> {
    let there = noise(3, SIZE);
    lo_share("socat", |net, load| {
        let dir = TempDir::new()?;
        fs::write(dir.path().join("there"), &there)?;
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
        Ok(2 * SIZE as u64)
    })
}

/// socat that forks for each connection and runs a program on it; IPv6 and dual stack.
#[test]
fn socat_forks_and_executes() -> Result<()> {
    for load in Load::BOTH {
        let net = Net::new()?;
        let _server =
            Program::new(&net, load, which("socat")?).args([&format!("TCP6-LISTEN:{PORT},reuseaddr,fork,ipv6only=0"), "EXEC:sha256sum"]).start()?;
        net.wait_listen(PORT)?;
        let dir = TempDir::new()?;
        let mut sums = Vec::new();
        for (i, to) in ["TCP4:127.0.0.1", "TCP6:[::1]", "TCP4:127.0.0.2"].iter().enumerate() {
            let file = dir.path().join("data");
            fs::write(&file, noise(i as u64, 5 << 20))?;
            let wanted = Program::new(&net, Load::Native, "sha256sum").stdin(File::open(&file)?).run_ok()?;
            let got =
                Program::new(&net, load, which("socat")?).args(["-t", "60", "-", &format!("{to}:{PORT}")]).stdin(File::open(&file)?).run_ok()?;
            ensure!(got == wanted, "{to}: {got}, not {wanted}");
            sums.push(got);
        }
        ensure!(sums.len() == 3);
    }
    Ok(())
}

/// memcached by a small client in Python: values compared, payload as memcached counted it.
#[test]
fn memcached() -> Result<()> {
    lo_share("memcached", |net, load| {
        let port = PORT.to_string();
        let user = if nix::unistd::geteuid().is_root() { &["-u", "nobody"][..] } else { &[] };
        let server = Program::new(net, load, which("memcached")?)
            .args(["-l", "127.0.0.1", "-p", &port, "-t", "2", "-U", "0", "-m", "200"])
            .args(user)
            .start()?;
        net.wait_listen(PORT)?;
        let out = Program::new(net, load, python()?).args([source_dir().join("py/memcached_client.py")]).args([&port]).run_ok()?;
        let payload = out.trim().parse().with_context(|| out.clone())?;
        server.stop()?;
        Ok(payload)
    })
}
