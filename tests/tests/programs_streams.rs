//! iperf3, netcat and socat: streams both ways, several at once, half-closed; memcached: many
//! small values. Where a program gives the bytes out again, they are compared.

use std::fs::{self, File};

use anyhow::{Result, ensure};
use smcr_tests::apps::{PORT, noise};
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program, flipping, which};
use smcr_tests::share::{lo_share, measure};
use smcr_tests::slow::only_slow;
use smcr_tests::streams::{iperf3, memcached, netcat, socat_both_ways, socat_echo};
use tempfile::TempDir;

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

/// A file there, and a file back.
#[test]
fn netcat_half_close() -> Result<()> {
    let data = noise(1, 2 * SIZE);
    for from_listener in [false, true] {
        lo_share(if from_listener { "nc, back" } else { "nc, there" }, |net, load| netcat(net, load, &data, from_listener))?;
    }
    Ok(())
}

/// A file each way at once, and then both half-close: all of it leaves TCP.
#[test]
fn socat_both_ways_at_once() -> Result<()> {
    let (there, back) = (noise(1, SIZE), noise(2, SIZE));
    lo_share("socat, both ways", |net, load| socat_both_ways(net, load, &there, &back, true))
}

/// Each end half-closes after its own file; the shorter one ends first, and from there on nothing wakes the sender of the
/// longer one but TCP, through which the rest goes (docs/operating.md, reason 29). Up to then all leaves TCP, at the least so much as the
/// shorter file has.
#[test]
fn socat_half_closes_one_way_first() -> Result<()> {
    let (there, back) = (noise(1, SIZE), noise(2, SIZE / 4));
    for load in Load::BOTH {
        let net = Net::new()?;
        let share = measure(&net, || socat_both_ways(&net, load, &there, &back, false))?;
        println!("{load:?}: {:.2} % on lo", share.percent());
        if load == Load::Native {
            share.ensure_on_tcp("socat")?;
        } else if !flipping() {
            let off = share.payload.saturating_sub(share.lo.bytes);
            if off * 20 < back.len() as u64 * 19 {
                return Err(only_slow(format!("{} of {} bytes left TCP", off, share.payload)));
            }
        }
    }
    Ok(())
}

#[test]
fn socat_echoes() -> Result<()> {
    let there = noise(3, SIZE);
    lo_share("socat", |net, load| socat_echo(net, load, &there))
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

#[test]
fn memcached_small_values() -> Result<()> {
    lo_share("memcached", memcached)
}
