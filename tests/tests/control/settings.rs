//! Settings that change while both ends run: they hold for the next connections.

use anyhow::{Result, ensure};
use smcr_tests::process::{eventually, flipping};

use crate::bed::{Bed, PORTS};

/// The page is there before the programs, or comes later: they look for it.
fn switched_live(early: bool) -> Result<()> {
    let bed = if early { Bed::enabled()? } else { Bed::new()? };
    let _server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.open("a", PORTS[0])?;
    client.moves_to_memory("a")?;

    bed.ok(&["disable", "--user"])?;
    if !early {
        // Looked for once a second, at a new connection.
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    client.open("b", PORTS[0])?;
    client.stays_on_tcp("b")?;
    client.moves_to_memory("a")?;
    ensure!(client.reasons()?.contains(&"disabled".to_string()), "{:?}", client.reasons()?);

    bed.ok(&["enable", "--user"])?;
    client.open("c", PORTS[0])?;
    client.moves_to_memory("c")?;
    client.stays_on_tcp("b")?;
    Ok(())
}

#[test]
fn enable_and_disable() -> Result<()> {
    switched_live(true)
}

#[test]
fn a_page_made_after_the_start() -> Result<()> {
    switched_live(false)
}

#[test]
fn port_ranges() -> Result<()> {
    let bed = Bed::enabled()?;
    let _server = bed.server(&[])?;
    let client = bed.client(&[])?;
    bed.ok(&["port-range", "add", "7001", "--user"])?;
    client.open("a", 7000)?;
    client.open("b", 7001)?;
    client.stays_on_tcp("a")?;
    client.moves_to_memory("b")?;
    ensure!(client.reasons()?.contains(&"port".to_string()), "{:?}", client.reasons()?);
    bed.ok(&["port-range", "add", "7000", "--user"])?;
    client.open("c", 7000)?;
    client.moves_to_memory("c")
}

#[test]
fn addresses_and_modes() -> Result<()> {
    let bed = Bed::new()?;
    bed.ok(&["set", "--user", "ip_addr_list=10.0.0.0/8"])?;
    let _server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.open("a", 7000)?;
    client.stays_on_tcp("a")?;
    bed.ok(&["set", "--user", "ip_addr_list=127.0.0.0/8"])?;
    client.open("b", 7000)?;
    client.moves_to_memory("b")?;
    bed.ok(&["set", "--user", "mode=rdma"])?;
    client.open("c", 7000)?;
    client.stays_on_tcp("c")?;
    bed.ok(&["set", "--user", "mode=shm"])?;
    client.open("d", 7000)?;
    client.moves_to_memory("d")?;
    let reasons = client.reasons()?;
    for reason in ["address", "mode"] {
        ensure!(reasons.contains(&reason.to_string()), "{reasons:?}");
    }
    Ok(())
}

/// Rules see the program's file name and its role; one side's rule is enough.
#[test]
fn rules() -> Result<()> {
    // SAFETY: geteuid(2) has no pointers.
    let uid = format!("uid={}", unsafe { libc::geteuid() });
    let all = ["program=python3*", "role=client", "role=server", "role=server port=7000", "addr=127.0.0.0/8", &uid];
    for rule in all {
        let bed = Bed::new()?;
        let words = ["rule", "add", "--user", "use=tcp"].into_iter().chain(rule.split(' '));
        bed.ok(&words.collect::<Vec<_>>())?;
        let _server = bed.server(&[])?;
        let client = bed.client(&[])?;
        client.open("a", 7000)?;
        client.stays_on_tcp("a")?;
        bed.ok(&["rule", "del", "1", "--user"])?;
        for other in ["program=redis*", "uid=12345", "addr=10.0.0.0/8", "port=7001", "role=client uid=12345"] {
            let words = ["rule", "add", "--user", "use=tcp"].into_iter().chain(other.split(' '));
            bed.ok(&words.collect::<Vec<_>>())?;
        }
        client.open("b", 7000)?;
        client.moves_to_memory("b")?;
        let shown = bed.socks()?;
        ensure!(shown.iter().any(|s| s["reason"]["name"] == "rule"), "{shown:?}");
    }
    Ok(())
}

/// The environment is stronger than the page.
#[test]
fn environment_first() -> Result<()> {
    let bed = Bed::new()?;
    bed.ok(&["set", "--user", "port_range_list=1"])?;
    let _server = bed.server(&[("SMCR_PORTS", "7000")])?;
    let client = bed.client(&[("SMCR_PORTS", "all")])?;
    client.open("a", 7000)?;
    client.moves_to_memory("a")?;
    client.open("b", 7001)?;
    client.stays_on_tcp("b")
}

/// Room for one connection: the second stays on TCP, and comes when the first has gone.
#[test]
fn memory_limit() -> Result<()> {
    let bed = Bed::new()?;
    bed.ok(&["set", "--user", "max_memory=1"])?;
    let _server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.open("a", 7000)?;
    client.moves_to_memory("a")?;
    client.open("b", 7000)?;
    client.stays_on_tcp("b")?;
    ensure!(client.reasons()?.contains(&"max-memory".to_string()), "{:?}", client.reasons()?);
    client.tell("close a")?;
    // It looks again after twice the operations.
    eventually("the second in memory", || {
        client.tell("talk b 500 100")?;
        Ok(client.moves_to_memory("b").is_ok())
    })
}

/// However many connections there are and however much they carry: no process maps more than it may.
#[test]
fn memory_stays_below_the_limit() -> Result<()> {
    let bed = Bed::new()?;
    bed.ok(&["set", "--user", "max_memory=3"])?;
    let server = bed.server(&[])?;
    let client = bed.client(&[])?;
    let names: Vec<String> = (0..12).map(|i| format!("c{i}")).collect();
    for name in &names {
        client.open(name, 7000)?;
        // Rings grow where they are found full.
        client.tell(&format!("talk {name} 4 500000"))?;
    }
    let mut in_memory = 0;
    for pid in [server.pid(), client.program.pid()] {
        let text = bed.ok(&["stats", "-a", "--json", "-p", &pid.to_string()])?;
        let stats: serde_json::Value = serde_json::from_str(&text)?;
        let memory = stats["totals"]["memory"].as_u64();
        ensure!(memory > Some(0) && memory <= Some(3 << 20), "{memory:?}: {text}");
        in_memory += stats["sockets"]["mode"]["shm"].as_u64().unwrap_or(0);
    }
    ensure!(in_memory > 0 && in_memory < 12 || flipping(), "{in_memory} ends in memory");
    ensure!(client.reasons()?.contains(&"max-memory".to_string()), "{:?}", client.reasons()?);
    // A running process gets more at once.
    bed.ok(&["set", "--user", "max_memory=100"])?;
    client.open("more", 7000)?;
    client.moves_to_memory("more")
}

#[test]
fn peers_of_other_users() -> Result<()> {
    let bed = Bed::new()?;
    bed.ok(&["set", "--user", "peer_uid=12345"])?;
    let _server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.open("a", 7000)?;
    client.stays_on_tcp("a")?;
    ensure!(client.reasons()? == ["peer-uid"], "{:?}", client.reasons()?);
    bed.ok(&["set", "--user", "peer_uid=same"])?;
    client.open("b", 7000)?;
    client.moves_to_memory("b")
}

/// Files that are no page cost one line of the log each and change nothing.
#[test]
fn broken_pages() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let garbage: [(&str, Vec<u8>, u32); 4] = [
        ("too short", vec![0; 100], 0o400),
        ("others may write", vec![0; 8192], 0o422),
        ("not a control page", vec![b'x'; 8192], 0o400),
        ("newer than", [&b"SMCRCTL\0\x09"[..], &[0; 8183]].concat(), 0o400),
    ];
    for (what, bytes, mode) in garbage {
        let bed = Bed::new()?;
        std::fs::create_dir(bed.page().parent().expect("parent"))?;
        std::fs::write(bed.page(), bytes)?;
        std::fs::set_permissions(bed.page(), std::fs::Permissions::from_mode(mode))?;
        let _server = bed.server(&[])?;
        let client = bed.client(&[("SMCR_LOG", "smcr::control=warn")])?;
        client.open("a", 7000)?;
        client.moves_to_memory("a")?;
        std::thread::sleep(std::time::Duration::from_millis(1100));
        client.open("b", 7000)?;
        client.moves_to_memory("b")?;
        let err = client.program.so_far().1;
        let lines: Vec<_> = err.lines().filter(|l| l.contains("control page ignored")).collect();
        ensure!(lines.len() == 1 && lines[0].contains(what), "{what}: {err}");
        // A good one takes its place.
        std::fs::remove_file(bed.page())?;
        bed.ok(&["disable", "--user"])?;
        std::thread::sleep(std::time::Duration::from_millis(1100));
        client.open("c", 7000)?;
        client.stays_on_tcp("c")?;
    }
    Ok(())
}
