//! Counters: what smcrctl shows is what the programs did, while a connection lives and after its end.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use smcr_tests::process::{eventually, flipping};

use crate::bed::Bed;

pub fn stats(bed: &Bed, pid: i32) -> Result<Value> {
    let text = bed.ok(&["stats", "-a", "--json", "-p", &pid.to_string()])?;
    serde_json::from_str(&text).context(text)
}

pub fn counter(stats: &Value, name: &str) -> u64 {
    stats["totals"][name].as_u64().unwrap_or(u64::MAX)
}

/// Each send is counted once, in the class of its size, whatever the ring made of it.
#[test]
fn sizes_and_ends() -> Result<()> {
    let bed = Bed::new()?;
    bed.ok(&["port-range", "add", "7000", "--user"])?;
    let server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.open("a", 7000)?;
    client.moves_to_memory("a")?;
    if flipping() {
        return Ok(()); // on TCP half of the time, where sizes are not counted
    }
    let pid = client.program.pid();
    let before = stats(&bed, pid)?;
    client.tell("talk a 50 100")?;
    client.tell("talk a 40 5000")?;
    client.tell("talk a 1 200000")?;
    let after = stats(&bed, pid)?;
    let more = |name| counter(&after, name) - counter(&before, name);
    for (name, n) in [("tx_64", 0), ("tx_256", 50), ("tx_1k", 0), ("tx_16k", 40), ("tx_256k", 1), ("rx_64", 0)] {
        ensure!(more(name) == n, "{name}: {} instead of {n}: {after}", more(name));
    }
    ensure!(more("mem_tx_bytes") == 50 * 100 + 40 * 5000 + 200_000, "{after}");
    let received: u64 = ["rx_256", "rx_1k", "rx_4k", "rx_16k", "rx_64k", "rx_256k"].map(more).iter().sum();
    ensure!(received >= 91, "{after}");
    // The same from the other end's page; it is the server's sends that the client received.
    let other = stats(&bed, server.pid())?;
    ensure!(counter(&other, "mem_tx_bytes") == counter(&after, "mem_rx_bytes"), "{other}");
    ensure!(counter(&other, "tx_256") >= 50, "{other}");
    // What was in the record moves to the process, and nothing is counted twice or lost.
    client.tell("close a")?;
    eventually("the end of both", || Ok(bed.socks()?.is_empty()))?;
    let end = stats(&bed, pid)?;
    for name in ["tx_256", "tx_16k", "tx_256k", "mem_tx_bytes", "mem_rx_bytes", "tcp_tx_bytes"] {
        ensure!(counter(&end, name) == counter(&after, name), "{name}: {end}");
    }
    ensure!(counter(&end, "tcp_ops") > 0 && counter(&end, "tracked") == 0, "{end}");
    ensure!(end["ended_on_tcp"].as_object().is_some_and(|m| m.is_empty()), "{end}");
    ensure!(counter(&end, "spin_hits") > 0 && counter(&end, "sleeps") > 0, "{end}");
    ensure!(counter(&end, "wakes_timed") <= counter(&end, "sleeps"), "{end}");
    // A connection that ends on TCP is counted by its reason, at both ends, and per user.
    client.tell("open b 7001")?;
    client.tell("talk b 100 10")?;
    client.tell("close b")?;
    eventually("the end of both", || Ok(bed.socks()?.is_empty()))?;
    for pid in [pid, server.pid()] {
        let stats = stats(&bed, pid)?;
        ensure!(stats["ended_on_tcp"]["port"] == 1, "{stats}");
        ensure!(stats["users"][0]["ended_on_tcp"]["port"] == 1, "{stats}");
    }
    let text = bed.ok(&["stats", "-a", "-d", "-p", &pid.to_string()])?;
    for line in ["by transport", "  256 B", "  port", "ended on TCP: port", "by user"] {
        ensure!(text.contains(line), "{line}: {text}");
    }
    let text = bed.ok(&["stats", "--prometheus", "-p", &pid.to_string()])?;
    let uid = &end["users"][0]["uid"];
    let line = format!("smcr_ended_on_tcp_total{{pid=\"{pid}\",uid=\"{uid}\",program=\"python3\",reason=\"port\"}} 1\n");
    ensure!(text.contains(&line), "{text}");
    Ok(())
}

/// Children of a server are killed, and their records given to the next ones: what they counted stays.
#[test]
fn killed_children_stay_in_the_totals() -> Result<()> {
    let bed = Bed::enabled()?;
    let server = bed.forking_server()?;
    let client = bed.client(&[])?;
    let pids = || -> Result<Vec<i32>> {
        let all = bed.socks()?;
        let ours = all.iter().filter(|s| s["program"] == "forks" && s["role"] == "server");
        Ok(ours.filter_map(|s| s["pid"].as_i64()).map(|p| p as i32).collect())
    };
    let totals = || -> Result<Value> {
        let text = bed.ok(&["stats", "-a", "--json", "--program", "forks"])?;
        let all: Value = serde_json::from_str(&text).context(text)?;
        Ok(all["totals"].clone())
    };
    let mut before = Value::Null;
    for round in 0..4 {
        client.open("a", 7000)?;
        client.moves_to_memory("a")?;
        let children: Vec<i32> = pids()?.into_iter().filter(|p| *p != server.pid()).collect();
        ensure!(children.len() == 1, "{children:?}");
        let now = totals()?;
        for name in ["sockets", "mem_tx_bytes", "mem_rx_bytes", "tcp_tx_bytes", "tx_1k", "rx_4k", "accelerated"] {
            let (then, now) = (before[name].as_u64(), now[name].as_u64());
            ensure!(now >= then && now > Some(0) || flipping(), "{name} in round {round}: {then:?}, {now:?}");
        }
        ensure!(now["tracked"].as_u64() <= Some(3), "what the killed had is not there: {now}");
        if !flipping() {
            let sent = now["mem_tx_bytes"].as_u64().unwrap_or(0) - before["mem_tx_bytes"].as_u64().unwrap_or(0);
            ensure!(sent >= 300 * 4000, "{sent} in round {round}");
        }
        before = now;
        // SAFETY: kill(2) of a child of this test's server.
        ensure!(unsafe { libc::kill(children[0], libc::SIGKILL) } == 0);
        eventually("its end", || Ok(!std::path::Path::new(&format!("/proc/{}", children[0])).exists()))?;
        client.tell("close a")?;
    }
    // One record stands for all of them, and it is no process.
    let text = bed.ok(&["stats", "-a", "-d", "--program", "forks"])?;
    ensure!(text.matches("all that ended before, of forks").count() == 1, "{text}");
    Ok(())
}

/// What a child has from its parent counts in its gauges, so that a close of it leaves none below zero.
#[test]
fn gauges_of_a_forked_child() -> Result<()> {
    let bed = Bed::enabled()?;
    let server = bed.heir()?;
    let client = bed.client(&[])?;
    client.open("a", 7000)?;
    client.moves_to_memory("a")?;
    let parent = || Ok::<_, anyhow::Error>(stats(&bed, server.pid())?["processes"][0].clone());
    bed.ok(&["disable", "--user"])?;
    eventually("the server has heard", || {
        client.tell("talk a 1 10")?;
        Ok(parent()?["enabled"] == false)
    })?;
    server.signal(Signal::SIGUSR1)?;
    eventually("a child", || Ok(server.so_far().0.contains("child")))?;
    let told = server.so_far().0;
    let pid = told.lines().find_map(|l| l.strip_prefix("child ")).context("its number")?.trim().parse()?;
    let child = stats(&bed, pid)?["processes"][0].clone();
    ensure!(child["pid"] == pid && child["enabled"] == false, "{child}");
    // The connection, and no listener.
    ensure!(child["counters"]["tracked"] == 1, "{child}");
    let memory = |p: &Value| p["counters"]["memory"].as_u64();
    ensure!(memory(&child) == memory(&parent()?) && (memory(&child) > Some(0) || flipping()), "{child}");
    Ok(())
}
