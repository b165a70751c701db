//! Counters: stats in its forms, and top.

use serde_json::Value;
use smcr_proto::page::link::{Record, Role};
use smcr_proto::page::{Counter, State, header, process, socket};
use smcr_proto::reason::Reason;

use crate::bed::{Bed, words};
use crate::fake::Fake;

fn json(bed: &Bed, args: &[&str]) -> Value {
    serde_json::from_str(&bed.ok(args)).unwrap()
}

#[test]
fn counters_can_be_reset_for_one_reader() {
    let (bed, other, fake) = (Bed::new(), Bed::new(), Fake::start());
    fake.connection(State::Accelerated, 0, [1, 1]);
    fake.count(Counter::Sockets, 5);
    fake.count(Counter::Tracked, 1);
    fake.count(Counter::MemTxBytes, 20);
    let pid = fake.pid().to_string();
    let total = |bed: &Bed, more: &[&str], name: &str| {
        let args = [&["stats", "-p", &pid, "--json"][..], more].concat();
        json(bed, &args)["totals"][name].as_u64().unwrap()
    };
    assert_eq!(total(&bed, &[], "sockets"), 5);
    // Bytes of the connection in use are added to those of ended ones.
    assert_eq!(total(&bed, &[], "mem_tx_bytes"), 1020);
    bed.ok(&["stats", "-p", &pid, "-r"]);
    fake.count(Counter::Sockets, 7);
    assert_eq!(total(&bed, &[], "sockets"), 2);
    assert_eq!(total(&bed, &[], "tracked"), 1);
    assert_eq!(total(&bed, &[], "mem_tx_bytes"), 0);
    assert_eq!(total(&bed, &["-a"], "sockets"), 7);
    assert_eq!(total(&other, &[], "sockets"), 7);
    let text = bed.ok(&["stats", "-p", &pid, "--prometheus"]);
    let uid = nix::unistd::geteuid();
    let line = format!("smcr_sockets_total{{pid=\"{pid}\",uid=\"{uid}\",program=\"sleep\"}} 7\n");
    assert!(text.contains(&line), "{text}");
    let detail = bed.ok(&["stats", "-p", &pid, "-d"]);
    assert!(detail.contains(&format!("pid {pid} sleep, library 1.2.3, enabled")), "{detail}");
}

#[test]
fn rates_and_top() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Accelerated, 0, [1, 1]);
    let pid = fake.pid().to_string();
    let line = bed.ok(&["stats", "-p", &pid, "-i", "1", "-c", "1", "--json"]);
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["rates"]["sockets"], 0.0);
    let text = bed.ok(&["top", "-c", "1", "-p", &pid]);
    assert!(text.contains("1 processes, 1 connections, 1 accelerated"), "{text}");
    assert!(text.contains("sleep"), "{text}");
}

/// What RDMA carried is told apart from shared memory, and by link group and device.
#[test]
fn transports_link_groups_and_devices() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Accelerated, 0, [2, 2]);
    for (counter, n) in [(Counter::Accelerated, 3), (Counter::Rdma, 1), (Counter::MemTxBytes, 500), (Counter::TcpOps, 11), (Counter::Tx256, 4)] {
        fake.count(counter, n);
    }
    let pid = fake.pid().to_string();
    let none = bed.ok(&["stats", "-p", &pid, "-d"]);
    assert!(none.contains("\nlink groups that there are now\n  none\n"), "{none}");
    let mut record = Record { id: 0x101, pid: fake.pid(), role: Role::Client, version: 2, port: 1, ..Record::default() };
    record.device[..4].copy_from_slice(b"rxe0");
    for (place, bytes, connections) in [(0, [1000, 50], 2), (1, [1, 2], 3)] {
        let id = 0x101 + place as u32;
        fake.page.link_group(0, place, &Record { id, bytes, connections, messages: [7, 8], ..record });
    }
    let text = bed.ok(&["stats", "-p", &pid, "-d"]);
    let lines = words(&text);
    let has = |line: &[&str]| assert!(lines.iter().any(|l| l == line), "{line:?}: {text}");
    has(&["shm", "0", "2", "4", "0", "4", "500", "0"]);
    has(&["rdma", "1", "1", "3", "2", "5", "1000", "50"]);
    has(&["tcp", "0", "-", "-", "-", "11", "7", "0"]);
    has(&["00000101", "CLNT", "rxe0", "1", "::", "2", "1000", "50", "7", "8", &pid, "sleep"]);
    has(&["rxe0", "1", "2", "5", "1001", "52", "14", "16"]);
    let all = json(&bed, &["stats", "-p", &pid, "--json"]);
    assert_eq!(all["transports"][1]["bytes_sent"], 1000, "{all}");
    assert_eq!(all["linkgroups"][1]["connections"], 3, "{all}");
    assert_eq!(all["devices"][0]["linkgroups"], 2, "{all}");
    let text = bed.ok(&["stats", "-p", &pid, "--prometheus"]);
    let line = format!("smcr_linkgroup_bytes_total{{pid=\"{pid}\",linkgroup=\"00000101\",device=\"rxe0\",port=\"1\",way=\"sent\"}} 1000\n");
    assert!(text.contains(&line), "{text}");
    // An ended connection that RDMA carried is not shared memory's either.
    let at = fake.page.socket(0, 1, State::Accelerated, 0, [0, 0], Some((fake.local, fake.peer)));
    fake.put(at + socket::CARRIED, &[2]);
    let all = json(&bed, &["stats", "-p", &pid, "--json"]);
    assert_eq!(all["transports"][1]["bytes_sent"], 1000, "{all}");
}

/// A connection has left memory one way: it says why, and is counted.
#[test]
fn reasons_of_what_is_in_use() {
    let (bed, fake) = (Bed::new(), Fake::start());
    let pid = fake.pid().to_string();
    let counted = [
        (State::Tcp, [0, 0], 1),
        (State::Pinned, [0, 0], 1),
        (State::Accelerated, [0, 1], 1),
        (State::Accelerated, [1, 0], 1),
        (State::Accelerated, [1, 1], 0),
    ];
    for (state, media, n) in counted {
        fake.connection(state, Reason::NotRead.code(), media);
        let all = json(&bed, &["stats", "-p", &pid, "--json"]);
        assert_eq!(all["sockets"]["reason"]["not-read"].as_u64().unwrap_or(0), n, "{media:?}: {all}");
    }
}

/// What an older library does not show is 0 or left out, and the rest is right.
#[test]
fn pages_of_an_older_library() {
    let (bed, fake) = (Bed::new(), Fake::of_the_first_library());
    fake.page.word(header::LINK_OFF, 0);
    fake.page.word(header::LINK_CAP, 0);
    fake.connection(State::Accelerated, 0, [1, 1]);
    fake.count(Counter::Sockets, 3);
    let pid = fake.pid().to_string();
    let all = json(&bed, &["stats", "-a", "-p", &pid, "--json"]);
    assert_eq!(all["totals"]["sockets"], 3, "{all}");
    assert_eq!(all["totals"]["mem_tx_bytes"], 1000, "{all}");
    assert_eq!(all["totals"]["tx_64"], 0, "{all}");
    assert_eq!(all["linkgroups"].as_array().map(Vec::len), Some(0), "{all}");
    assert_eq!(json(&bed, &["sock", "-p", &pid, "--json"]).as_array().map(Vec::len), Some(1));
}

/// Who is gone has nothing now, and what it counted is still in the totals.
#[test]
fn processes_that_have_ended() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.count(Counter::Sockets, 1);
    fake.write_process(1, 0x7fff_fff0);
    fake.page.process(2, process::ENDED, 12345);
    for index in [1, 2] {
        fake.count_of(index, Counter::Sockets, 10);
        fake.count_of(index, Counter::Tracked, 4);
        fake.count_of(index, Counter::Memory, 1 << 20);
    }
    // Not the only page with programs of this name; the test's own has these numbers alone.
    let all = json(&bed, &["stats", "-a", "--json"]);
    let ours = |p: &&Value| p["own_pid"] == 0x7fff_fff0u32 || p["start"] == 12345 || p["pid"] == fake.pid();
    let found: Vec<_> = all["processes"].as_array().unwrap().iter().filter(ours).collect();
    assert_eq!(found.len(), 3, "{all}");
    for p in &found {
        assert_eq!(p["counters"]["tracked"], 0, "{p}");
        assert_eq!(p["counters"]["memory"], 0, "{p}");
        assert_eq!(p["counters"]["sockets"], if p["pid"].is_null() { 10 } else { 1 }, "{p}");
    }
    // The head of the view counts the living.
    let call_all = |name: &[u8]| (0..3).for_each(|i| fake.put(fake.page.of_process(i, process::NAME), name));
    call_all(b"topped\0");
    let text = bed.ok(&["top", "-c", "1", "--program", "topped"]);
    assert!(text.contains("smcrctl top: 1 processes"), "{text}");
    call_all(b"sleep\0\0");
    let text = bed.ok(&["stats", "-a", "-d"]);
    for line in ["\nended (was pid 2147483632) sleep, ", "\nall that ended before, of sleep, "] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let text = bed.ok(&["stats", "--prometheus"]);
    assert!(text.contains("pid=\"ended-4294967295-12345\""), "{text}");
    // Records that were never used are not looked at.
    fake.page.word(header::PROC_HIGH, 2);
    let all = json(&bed, &["stats", "-a", "--json"]);
    assert!(!all["processes"].as_array().unwrap().iter().any(|p| p["start"] == 12345), "{all}");
}

/// A child of a parent with an older library counts less than nothing: 0 is shown, and the totals are the others'.
#[test]
fn gauges_do_not_go_below_zero() {
    let (bed, fake) = (Bed::new(), Fake::start());
    for counter in [Counter::Tracked, Counter::Memory] {
        fake.count(counter, -3i64 as u64);
    }
    let pid = fake.pid().to_string();
    let all = json(&bed, &["stats", "-p", &pid, "--json"]);
    for of in [&all["totals"], &all["processes"][0]["counters"]] {
        assert_eq!((&of["tracked"], &of["memory"]), (&0.into(), &0.into()), "{all}");
    }
    let text = bed.ok(&["stats", "-p", &pid, "--prometheus"]);
    assert!(text.lines().any(|l| l.starts_with("smcr_tracked{") && l.ends_with(" 0")), "{text}");
}
