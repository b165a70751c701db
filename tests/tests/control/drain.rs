//! Draining: connections in use go back to TCP, and not a byte is lost.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use smcr_tests::apps::noise;
use smcr_tests::process::{Running, eventually, flipping};

use crate::bed::{Bed, Client, PORTS};

/// Media and reasons of all connection ends.
fn shown(bed: &Bed) -> Result<Vec<(String, String)>> {
    let text = |v: &serde_json::Value| v.as_str().unwrap_or_default().to_string();
    Ok(bed.socks()?.iter().map(|s| (text(&s["mode"]), text(&s["reason"]["name"]))).collect())
}

/// A server, and a client whose connections of these names and ports are in memory.
fn connected<'a>(bed: &'a Bed, connections: &[(&str, u16)]) -> Result<(Running<'a>, Client<'a>)> {
    let (server, client) = (bed.server(&[])?, bed.client(&[])?);
    for (name, port) in connections {
        client.open(name, *port)?;
        client.moves_to_memory(name)?;
    }
    Ok((server, client))
}

fn wait_for_rounds(client: &Client, name: &str, more: u64) -> Result<()> {
    let rounds = |answer: String| answer.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0u64);
    let from = rounds(client.tell(&format!("rounds {name}"))?);
    eventually("rounds", || Ok(rounds(client.tell(&format!("rounds {name}"))?) >= from + more))
}

/// Both ends are busy, and both are asked at once.
#[test]
fn all_while_busy() -> Result<()> {
    for round in 0..3 {
        // In the first round the request itself makes the page.
        let bed = if round > 0 { Bed::enabled()? } else { Bed::new()? };
        let names = ["a", "b", "c", "d"];
        let (_server, client) = connected(&bed, &names.map(|name| (name, 7000)))?;
        for (i, name) in names.iter().enumerate() {
            client.tell(&format!("start {name} {}", [10, 3000, 30_000, 120_000][i]))?;
        }
        wait_for_rounds(&client, "a", 500)?;
        // Other tests' connections are in memory too, and follow other pages: only ours are awaited.
        bed.ok(&["drain", "all", "--user", "--no-wait"])?;
        eventually("all on TCP", || {
            let now = shown(&bed)?;
            Ok(now.len() == 8 && now.iter().all(|s| s.0 == "tcp"))
        })?;
        let now = shown(&bed)?;
        let told = |s: &(String, String)| s.1 == "drained" || s.1 == "peer-pinned";
        ensure!(flipping() || now.iter().all(told), "{now:?}");
        for name in names {
            wait_for_rounds(&client, name, 20)?;
            let end = client.say(&format!("stop {name}"))?;
            ensure!(end.starts_with("ok"), "{name}: {end}");
            client.stays_on_tcp(name)?;
        }
        // The next ones are as before.
        client.open("e", 7000)?;
        client.moves_to_memory("e")?;
    }
    Ok(())
}

/// Only one end is asked, or only one port.
#[test]
fn one_process_or_port() -> Result<()> {
    let bed = Bed::enabled()?;
    let (server, client) = connected(&bed, &[("a", 7000), ("b", 7001)])?;
    for name in ["a", "b"] {
        client.tell(&format!("start {name}"))?;
    }
    bed.ok(&["drain", "port:7001", "--user"])?;
    wait_for_rounds(&client, "a", 300)?;
    wait_for_rounds(&client, "b", 300)?;
    let now = shown(&bed)?;
    let on_tcp = now.iter().filter(|s| s.0 == "tcp").count();
    ensure!(on_tcp == 2 || on_tcp > 2 && flipping(), "{now:?}");
    bed.ok(&["drain", &format!("pid:{}", server.pid()), "--user"])?;
    wait_for_rounds(&client, "a", 300)?;
    for name in ["a", "b"] {
        ensure!(client.say(&format!("stop {name}"))?.starts_with("ok"));
        client.stays_on_tcp(name)?;
    }
    client.open("c", 7000)?;
    client.moves_to_memory("c")
}

/// Both ends sleep, and nothing comes: they are woken, and go on waiting for what has not come.
#[test]
fn asleep() -> Result<()> {
    for how in ["recv", "poll", "epoll"] {
        for both in [false, true] {
            let bed = Bed::enabled()?;
            let (server, client) = connected(&bed, &[("a", 7000)])?;
            client.tell(&format!("sleep a 10000 {how}"))?;
            settled(&[server.pid(), client.program.pid()])?;
            let target = if both { "all".into() } else { format!("pid:{}", server.pid()) };
            if both {
                // Connections of other tests are in memory too, and follow other pages.
                bed.ok(&["drain", "all", "--user", "--no-wait"])?;
            } else {
                bed.ok(&["drain", &target, "--user", "--timeout", "20"])?;
            }
            eventually("both on TCP", || Ok(shown(&bed)?.iter().all(|s| s.0 == "tcp")))?;
            let now = shown(&bed)?;
            ensure!(now.len() == 2, "{how}: {now:?}");
            client.tell("put a 10000")?;
            client.tell("woken a")?;
            client.stays_on_tcp("a")?;
        }
    }
    Ok(())
}

/// Waits until every thread of these processes sleeps and does not run meanwhile.
fn settled(pids: &[i32]) -> Result<()> {
    let switches = || -> Result<String> {
        let mut all = String::new();
        for pid in pids {
            for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
                let status = std::fs::read_to_string(task?.path().join("status"))?;
                all.extend(status.lines().filter(|l| l.contains("ctxt_switches") || l.starts_with("State")));
            }
        }
        Ok(all)
    };
    eventually("both asleep", || {
        let before = switches()?;
        std::thread::sleep(std::time::Duration::from_millis(50));
        Ok(before == switches()? && !before.contains("running"))
    })
}

/// The client does not look at its connection at all: it is said, and done when it does.
#[test]
fn busy_elsewhere() -> Result<()> {
    let bed = Bed::enabled()?;
    let (server, client) = connected(&bed, &[("a", 7000)])?;
    let target = format!("pid:{}", server.pid());
    let ended = bed.ctl(&["drain", &target, "--user", "--timeout", "1"])?;
    if !flipping() {
        ensure!(!ended.status.success(), "{ended}");
        ensure!(ended.err.contains("when they look at them: python3"), "{ended}");
    }
    client.tell("talk a 10 1000")?;
    client.stays_on_tcp("a")?;
    let now = shown(&bed)?;
    ensure!(now.len() == 2 && now.iter().all(|s| s.0 == "tcp"), "{now:?}");
    Ok(())
}

/// What lies unread in the ring is not lost, whether the peer is there, or has closed already.
#[test]
fn unread_data() -> Result<()> {
    for ended in [false, true] {
        let bed = Bed::enabled()?;
        let (_server, client) = connected(&bed, &[("a", 7000)])?;
        client.tell("put a 30000")?;
        if ended {
            client.tell("end a")?;
            eventually("the server's close", || Ok(bed.socks()?.len() == 1))?;
        } else {
            // What the server has sent and the client has not read.
            let sum =
                |s: &serde_json::Value, way: &str, cursor: &str| -> i64 { [cursor, "tcp_bytes"].iter().filter_map(|n| s[way][n].as_i64()).sum() };
            eventually("the echo", || {
                let socks = bed.socks()?;
                let of = |role| socks.iter().find(|s| s["role"] == role);
                let (Some(s), Some(c)) = (of("server"), of("client")) else { return Ok(false) };
                Ok(sum(s, "tx", "producer") - sum(c, "rx", "consumer") == 30_000)
            })?;
        }
        let target = format!("pid:{}", client.program.pid());
        bed.ok(&["drain", &target, "--user", "--no-wait"])?;
        client.tell("open b 7000")?; // it looks at the page
        client.tell(if ended { "fetch a 30000 0" } else { "fetch a 30000" })?;
        let now = shown(&bed)?;
        ensure!(now.iter().any(|s| s.1 == "drained"), "{now:?}");
        if !ended {
            client.stays_on_tcp("a")?;
        }
        client.moves_to_memory("b")?;
    }
    Ok(())
}

/// A client that only sends dies. If the doorbell of a drain alone lies unread in its stream, the server sees an end, as
/// TCP shows it; if payload does, a reset.
#[test]
fn killed_unread() -> Result<()> {
    for (greeting, drains, end) in [(100, false, "ECONNRESET"), (0, true, "EOF"), (100, true, "ECONNRESET")] {
        let bed = Bed::enabled()?;
        let (server, client) = (bed.sink(greeting, 0)?, bed.client(&[])?);
        client.tell(&format!("open a {}", PORTS[0]))?;
        feed_until_both_in_memory(&bed, &client)?;
        if drains {
            bed.ok(&["drain", &format!("pid:{}", server.pid()), "--user", "--no-wait"])?;
            eventually("the server sends through TCP", || Ok(tx_switches(&bed, "server")? > 1))?;
        }
        client.program.signal(Signal::SIGKILL)?;
        ends_with(&server, end).with_context(|| format!("greeting {greeting}, drain {drains}"))?;
    }
    Ok(())
}

/// A client asks for what lies unread in its ring through TCP, and dies before the server hears of it: TCP had shown a
/// reset for it.
#[test]
fn killed_asking() -> Result<()> {
    let bed = Bed::enabled()?;
    let (server, client) = (bed.sink(0, 50_000)?, bed.client(&[])?);
    client.tell(&format!("open a {}", PORTS[0]))?;
    feed_until_both_in_memory(&bed, &client)?;
    eventually("the server has sent", || {
        client.tell("put a 30000")?;
        Ok(server.so_far().0.contains("sent"))
    })?;
    client.tell("fetch a 20000")?;
    bed.ok(&["drain", &format!("pid:{}", client.program.pid()), "--user", "--no-wait"])?;
    client.begin(&format!("open b {}", PORTS[0]))?; // it looks at the page, asks, and waits
    eventually("the client asks", || Ok(flipping() || tx_switches(&bed, "client")? > 1))?;
    client.program.signal(Signal::SIGKILL)?;
    eventually("the client's end", || Ok(bed.socks()?.iter().all(|s| s["role"] != "client")))?;
    server.signal(Signal::SIGUSR1)?;
    ends_with(&server, "ECONNRESET")
}

fn tx_switches(bed: &Bed, role: &str) -> Result<i64> {
    let socks = bed.socks()?;
    Ok(socks.iter().find(|s| s["role"] == role).and_then(|s| s["tx"]["switches"].as_i64()).unwrap_or(0))
}

fn feed_until_both_in_memory(bed: &Bed, client: &Client) -> Result<()> {
    eventually("both send through memory", || {
        client.tell("put a 30000")?;
        Ok(tx_switches(bed, "client")? > 0 && tx_switches(bed, "server")? > 0)
    })
}

/// What the last read of the sink said.
fn ends_with(server: &Running, end: &str) -> Result<()> {
    eventually("the server's last read", || Ok(server.so_far().0.contains("ended")))?;
    let told = server.so_far().0;
    ensure!(told.contains(&format!("ended {end}")), "{told}");
    Ok(())
}

/// redis with clients that pipe 200 MB each, one after the other; its digest must be right.
#[test]
fn redis_under_load() -> Result<()> {
    use smcr_tests::apps::Redis;
    use smcr_tests::net::Net;
    use smcr_tests::process::Load;
    let mut commands = Vec::new();
    for i in 0..20_000u64 {
        let value = noise(i, 200 + (i as usize * 37) % 2000);
        commands.extend(format!("*3\r\n$3\r\nSET\r\n$6\r\nk{i:05}\r\n${}\r\n", value.len()).bytes());
        commands.extend(value);
        commands.extend(b"\r\n");
    }
    let digest = |load: Load, drains: bool| -> Result<String> {
        let net = Net::new()?;
        let dir = tempfile::TempDir::new()?;
        // The harness starts redis with our environment: the page of this test's own directory.
        let redis = Redis::start_with(&net, load, &["env", &format!("XDG_RUNTIME_DIR={}", dir.path().display())])?;
        std::thread::scope(|scope| -> Result<()> {
            // The same keys again and again, so that smcrctl comes in time.
            let (redis, much) = (&redis, commands.repeat(if drains { 8 } else { 1 }));
            let pipes = if drains { 3 } else { 1 };
            let piped = scope.spawn(move || (0..pipes).try_for_each(|_| redis.pipe(&much)));
            while drains && !piped.is_finished() {
                smcr_tests::process::Program::new(&net, Load::Native, crate::bed::smcrctl())
                    .env("XDG_RUNTIME_DIR", dir.path())
                    .env("XDG_CONFIG_HOME", dir.path())
                    .args(["drain", &format!("pid:{}", redis.pid()), "--user", "--no-wait"])
                    .run()?;
            }
            piped.join().expect("pipe")
        })?;
        if drains {
            let pid = redis.pid().to_string();
            let text =
                smcr_tests::process::Program::new(&net, Load::Native, crate::bed::smcrctl()).args(["stats", "-a", "--json", "-p", &pid]).run_ok()?;
            let stats: serde_json::Value = serde_json::from_str(&text)?;
            let [moved, late] = ["handovers", "handover_timeouts"].map(|c| &stats["totals"][c]);
            ensure!((moved.as_u64() > Some(0) || flipping()) && late.as_u64() == Some(0), "{text}");
        }
        let digest = redis.cli(&["debug", "digest"])?;
        redis.stop()?;
        Ok(digest)
    };
    let right = digest(Load::Native, false)?;
    ensure!(digest(Load::Library, true)? == right);
    Ok(())
}
