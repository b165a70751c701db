//! Looking at processes through their family pages.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use serde_json::Value;
use smcr_proto::page::{State, header, process, socket};
use smcr_proto::reason::Reason;

use crate::bed::{Bed, words};
use crate::fake::{FD, Fake};
use crate::page::start_of;

fn json(bed: &Bed, args: &[&str]) -> Value {
    serde_json::from_str(&bed.ok(args)).unwrap()
}

#[test]
fn a_connection_as_ss_would_show_it() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Accelerated, 0, [1, 1]);
    let pid = fake.pid().to_string();
    let text = bed.ok(&["sock", "-p", &pid]);
    let lines = words(&text);
    assert_eq!(lines.len(), 2, "{text}");
    let (local, peer) = (fake.local.to_string(), fake.peer.to_string());
    assert_eq!(lines[1], ["ACCELERATED", "shm", "-", &local, &peer, &pid, "sleep", "1"]);
    let all = json(&bed, &["sock", "-p", &pid, "--json"]);
    let c = &all[0];
    assert_eq!(c["tx"]["in_flight"], 100);
    assert_eq!(c["rx"]["unread"], 30);
    assert_eq!(c["role"], "client");
    assert!(c["inode"].as_u64().unwrap() > 0);
}

#[test]
fn addresses_come_from_the_kernel_where_the_record_has_none() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.record(0, State::Tcp, 1, [0, 0], None);
    let all = json(&bed, &["sock", "-p", &fake.pid().to_string(), "--json"]);
    assert_eq!(all[0]["local"], fake.local.to_string());
    assert_eq!(all[0]["peer"], fake.peer.to_string());
    assert_eq!(all[0]["reason"]["name"], "short");
}

#[test]
fn records_of_what_is_gone_are_not_shown() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Accelerated, 0, [1, 1]);
    let pid = fake.pid().to_string();
    // The descriptor is another socket than the record tells of.
    let elsewhere = "127.0.0.1:1".parse().unwrap();
    fake.record(0, State::Accelerated, 0, [1, 1], Some((elsewhere, fake.peer)));
    assert_eq!(bed.ok(&["sock", "-p", &pid]).lines().count(), 1);
    // The process of the record is gone, but this one has the connection.
    fake.connection(State::Accelerated, 0, [1, 1]);
    fake.write_process(0, 0x7fff_fff0);
    assert_eq!(json(&bed, &["sock", "-p", &pid, "--json"])[0]["pid"], fake.pid());
}

/// Two processes with one page: what one of them has is not shown of the other.
#[test]
fn a_relative_is_not_taken_for_who_is_named() {
    let (bed, fake) = (Bed::new(), Fake::start());
    let page = OwnedFd::from(fake.page.file.try_clone().unwrap());
    let mut relative = Command::new("sleep").arg("600").stdin(page).stdout(Stdio::null()).spawn().unwrap();
    fake.write_process(1, relative.id());
    fake.page.put(fake.page.of_process(1, process::START), &start_of(relative.id()).to_le_bytes());
    // Used last by the first, which gave it another number since.
    let ends = Some((fake.local, fake.peer));
    let at = fake.page.socket(0, 77, State::Tcp, 1, [0, 0], ends);
    let of = |pid: u32| json(&bed, &["sock", "-p", &pid.to_string(), "--json"]);
    let (own, other) = (of(fake.pid()), of(relative.id()));
    // Whoever used it last, it is who has it that is shown.
    fake.page.word(at + socket::PROCESS, 1);
    let all = json(&bed, &["sock", "--json"]);
    relative.kill().unwrap();
    relative.wait().unwrap();
    assert_eq!((&own[0]["pid"], &own[0]["fd"]), (&fake.pid().into(), &FD.into()), "{own}");
    assert_eq!(other.as_array().map(Vec::len), Some(0), "{other}");
    // Another test's connection may have the same local end.
    let is_ours = |s: &&Value| s["local"] == fake.local.to_string() && s["peer"] == fake.peer.to_string();
    let ours = all.as_array().unwrap().iter().find(is_ours).unwrap();
    assert_eq!(ours["pid"], fake.pid(), "{ours}");
}

/// It had no /proc when it made its first socket (chroot).
#[test]
fn a_process_that_does_not_know_its_start_is_there() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Tcp, 1, [0, 0]);
    fake.page.process(0, fake.pid(), 0);
    let all = json(&bed, &["stats", "-p", &fake.pid().to_string(), "--json"]);
    assert_eq!(all["processes"][0]["pid"], fake.pid(), "{all}");
}

/// Who shows more pages than a library makes takes no memory by them.
#[test]
fn two_pages_of_a_process_are_read() {
    let (bed, third) = (Bed::new(), Fake::start());
    let pages: Vec<_> = (0..2).map(|_| Fake::start()).collect();
    let file = |fake: &Fake| OwnedFd::from(fake.page.file.try_clone().unwrap());
    let mut many = Command::new("sleep");
    many.arg("600").stdin(file(&pages[0])).stdout(file(&pages[1])).stderr(file(&third));
    let mut many = many.spawn().unwrap();
    third.write_process(0, many.id());
    third.page.put(third.page.of_process(0, process::START), &start_of(many.id()).to_le_bytes());
    let pid = many.id().to_string();
    let output = bed.smcrctl(&["stats", "-p", &pid, "--json"]).output().unwrap();
    many.kill().unwrap();
    many.wait().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains(&format!("note: process {pid} is left out: it shows more than two family pages")), "{told}");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(all["processes"].as_array().unwrap().iter().all(|p| p["pid"] != many.id()), "{all}");
}

#[test]
fn filters() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Pinned, 18, [0, 0]);
    let pid = fake.pid().to_string();
    let port = fake.peer.port().to_string();
    let count = |more: &[&str]| {
        let args = [&["sock", "-p", &pid][..], more].concat();
        bed.ok(&args).lines().count() - 1
    };
    for yes in [
        &["--mode", "tcp"][..],
        &["--state", "pinned"],
        &["--reason", "urgent"],
        &["--reason", "18"],
        &["--dport", &port],
        &["--port", &port],
        &["--addr", "127.0.0.1"],
        &["--program", "sl*"],
        &["-a"],
    ] {
        assert_eq!(count(yes), 1, "{yes:?}");
    }
    for no in [
        &["--mode", "shm"][..],
        &["--state", "accelerated"],
        &["--reason", "stdio"],
        &["--sport", &port],
        &["--addr", "127.0.0.2"],
        &["--program", "sl"],
        &["-l"],
    ] {
        assert_eq!(count(no), 0, "{no:?}");
    }
    for (args, told) in
        [(["sock", "--state", "x"], "no state `x`"), (["sock", "--reason", "x"], "no reason `x`"), (["sock", "--mode", "x"], "invalid value 'x'")]
    {
        assert!(bed.fails(&args, 2).contains(told));
    }
}

#[test]
fn hostile_and_newer_pages() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Accelerated, 77, [9, 1]);
    fake.put(header::VERSION, &2u32.to_le_bytes());
    let pid = fake.pid().to_string();
    bed.smcrctl(&["sock", "-p", &pid])
        .assert()
        .success()
        .stdout(predicates::str::contains("?/shm  0x4d (77)"))
        .stderr(predicates::str::contains("pages of version 2, newer"));
    // One that cannot be understood is left out, and that is said.
    fake.put(header::SOCK_SIZE, &u32::MAX.to_le_bytes());
    let told = format!("note: process {pid} is left out: the family page has an impossible socket array");
    bed.smcrctl(&["sock", "-p", &pid]).assert().success().stdout(predicates::str::contains("\n").count(1)).stderr(predicates::str::contains(told));
}

/// Both directions are back on TCP, and the record's state has not followed yet.
#[test]
fn accelerated_means_that_something_is_in_memory() {
    let (bed, fake) = (Bed::new(), Fake::start());
    let pid = fake.pid().to_string();
    let first = |args: &[&str]| bed.ok(args).lines().last().unwrap_or_default().to_string();
    fake.connection(State::Accelerated, 31, [0, 0]);
    assert!(first(&["sock", "-p", &pid]).starts_with("TCP  "));
    assert!(bed.ok(&["explain", &pid]).contains("peer-pinned (31)"));
    assert!(bed.ok(&["top", "-c", "1", "-p", &pid]).contains("1 connections, 0 accelerated"));
    fake.connection(State::Accelerated, 0, [0, 0]);
    assert!(bed.ok(&["explain", &pid]).contains("on TCP for now"));
    fake.connection(State::Accelerated, 0, [0, 1]);
    assert!(first(&["sock", "-p", &pid]).starts_with("ACCELERATED  tcp/shm"));
}

/// A process that is named and not there, or another user's, is a failure wherever it is named.
#[test]
fn processes_that_cannot_be_looked_at() {
    let bed = Bed::new();
    let gone = |args: &[&str]| {
        let line = bed.fails(args, 1);
        assert!(line.contains("no process 4194304; smcrctl sock lists"), "{args:?}: {line}");
    };
    for command in ["sock", "stats", "top"] {
        gone(&[command, "-p", "4194304"]);
    }
    gone(&["stats", "-r", "-p", "4194304"]);
    gone(&["stats", "-i", "1", "-p", "4194304"]);
    gone(&["explain", "pid:4194304"]);
    gone(&["explain", "4194304/1"]);
    gone(&["drain", "--user", "pid:4194304"]);
    if nix::unistd::geteuid().is_root() {
        // As another user, if that one can reach the test's program.
        let run = |args: &[&str]| {
            let mut command = std::process::Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_smcrctl")]);
            command.args(args).env("HOME", "/").output().unwrap()
        };
        if run(&["--version"]).status.success() {
            let ours = format!("pid:{}", std::process::id());
            let own = std::process::id().to_string();
            for args in [&["sock", "-p", &own][..], &["stats", "-p", &own], &["explain", &ours], &["drain", &ours]] {
                let output = run(args);
                let line = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(output.status.code(), Some(1), "{args:?}: {line}");
                assert!(line.contains("belongs to another user"), "{args:?}: {line}");
            }
        }
    }
}

#[test]
fn reasons_are_explained() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Pinned, 13, [0, 0]);
    let pid = fake.pid().to_string();
    for what in [pid.clone(), format!("{pid}/{FD}"), format!("pid:{pid}")] {
        let text = bed.ok(&["explain", &what]);
        assert!(text.contains("max-memory (13): max_memory is used up"), "{text}");
        assert!(text.contains("what to change: smcrctl set max_memory="), "{text}");
        assert!(text.contains("max_memory = 4096 (default)"), "{text}");
    }
    for what in ["13", "code:13", "max-memory"] {
        assert!(bed.ok(&["explain", what]).starts_with("max-memory (13): "));
    }
    assert!(bed.ok(&["explain", "03010000"]).starts_with("SMC 03010000: the peer did not offer"));
    let all = bed.ok(&["explain"]);
    assert_eq!(all.lines().count(), Reason::ALL.len());
    for reason in Reason::ALL.iter().skip(1) {
        assert!(all.contains(reason.text()), "{all}");
        for what in [format!("code:{}", reason.code()), reason.label().to_string()] {
            let text = bed.ok(&["explain", &what]);
            assert!(text.starts_with(reason.label()) && text.contains(reason.text()), "{text}");
            assert!(text.contains(&format!("what to change: {}\n", reason.mend())), "{text}");
        }
    }
    let mut plain = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let text = bed.ok(&["explain", &format!("pid:{}", plain.id())]);
    plain.kill().unwrap();
    plain.wait().unwrap();
    assert!(text.contains("does not have the library"), "{text}");
    assert!(text.contains("start it with smcrctl run"), "{text}");
    for (what, status) in [("nonsense", 2), ("1/x", 2), ("pid:4194304", 1), (&format!("{pid}/99"), 1)] {
        bed.fails(&["explain", what], status);
    }
}

/// What the peer has said by its Decline.
#[test]
fn a_peer_that_declined_has_its_own_reason() {
    let (bed, fake) = (Bed::new(), Fake::start());
    let pid = fake.pid().to_string();
    let looks = |reason, code: u32| {
        let at = fake.page.socket(0, FD, State::Tcp, reason, [0, 0], Some((fake.local, fake.peer)));
        fake.page.word(at + socket::PEER_DIAGNOSIS, code);
        let table = bed.ok(&["sock", "-p", &pid]).lines().last().unwrap().to_string();
        let all = json(&bed, &["sock", "-p", &pid, "--json"]);
        (table, all[0]["peer_diagnosis"].clone(), bed.ok(&["explain", &format!("{pid}/{FD}")]))
    };
    let (table, said, text) = looks(0x0500_0000, 0x0303_0002);
    assert!(table.starts_with("TCP    tcp   SMC 05000000/03030002  "), "{table}");
    assert_eq!((&said["code"], &said["name"]), (&0x0303_0002.into(), &"SMC 03030002".into()), "{said}");
    assert_eq!(said["text"], Reason::SmcNoRdma.text());
    assert!(text.contains("  SMC 05000000: the peer declined"), "{text}");
    let of_peer = format!("  the peer's own reason: SMC 03030002: {}\n    what to change: {}\n", Reason::SmcNoRdma.text(), Reason::SmcNoRdma.mend());
    assert!(text.contains(&of_peer), "{text}");
    // A code that nobody here knows is its number.
    let (table, said, text) = looks(0x0500_0000, 0x0303_0042);
    assert!(table.contains(" SMC 05000000/03030042 "), "{table}");
    assert_eq!((&said["code"], &said["text"]), (&0x0303_0042.into(), &Value::Null), "{said}");
    assert!(text.contains("  the peer's own reason: 03030042, a code that this version does not know\n"), "{text}");
    // A library of before keeps none; nor has a connection one that was declined here.
    for reason in [0x0500_0000, 0x0101_0000] {
        let (table, said, text) = looks(reason, 0);
        assert!(table.contains(&format!(" SMC {reason:08x} ")), "{table}");
        assert!(said.is_null() && !text.contains("the peer's own reason"), "{said} {text}");
    }
}

/// The table of reasons in docs/operating.md has every reason of the library's own, by number and name.
#[test]
fn each_reason_has_its_line_in_the_manual() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("| reason | what to do |").unwrap();
    let mut told = std::collections::BTreeSet::new();
    for line in table.lines().skip(2).take_while(|l| l.starts_with('|')) {
        let cell = line.split('|').nth(1).unwrap_or_default();
        for item in cell.split(',').filter_map(|item| item.split_whitespace().next()) {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
                told.extend(first..=last);
            }
        }
    }
    let own = Reason::ALL.iter().skip(1).filter(|r| r.code() < 1 << 24);
    let missing: Vec<_> = own.filter(|r| !told.contains(&r.code())).map(|r| r.label()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn what_is_not_there_is_not_made_up() {
    let bed = Bed::new();
    assert_eq!(bed.ok(&["device"]), "no RDMA devices\n");
    assert_eq!(bed.ok(&["device", "--json"]).trim(), "[]");
    assert_eq!(bed.ok(&["ueid", "show"]), "");
    let mut plain = Command::new("sleep").arg("600").spawn().unwrap();
    let none = bed.ok(&["sock", "-p", &plain.id().to_string(), "--json"]);
    plain.kill().unwrap();
    plain.wait().unwrap();
    assert_eq!(none.trim(), "[]");
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let bed = Bed::new();
    let script = format!("set -o pipefail; '{}' stats -d | true", assert_cmd::cargo::cargo_bin!("smcrctl").display());
    assert_cmd::Command::new("bash").args(["-c", &script]).env("HOME", bed.path("home")).assert().success();
}
