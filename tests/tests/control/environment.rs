//! The environment: what it has wrong is told once and changes nothing, and what SMCR_LOG asks for is told, and no more.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program, flipping};
use smcr_tests::twice::python;

use crate::bed::{Bed, PORTS};

/// A wrong value of each variable that the library reads, and what is said of it.
const WRONG: [(&str, &str, &str); 12] = [
    ("SMCR_RING", "1000", "`1000`: write a number from 4096 to 262144"),
    ("SMCR_FLIP", "often", "`often`: write MEAN_BYTES[,SEED]"),
    ("SMCR_LOG", "loud", "`loud`: write level[,target=level]: off error warn info debug trace"),
    ("SMCR_ENABLE", "maybe", "`maybe`: write 0 or 1"),
    ("SMCR_MODE", "fast", "`fast`: write auto, shm, rdma or off"),
    ("SMCR_STRICT", "2", "`2`: write 0 or 1"),
    ("SMCR_SPIN_US", "-1", "`-1`: write a number from 0 to 100000"),
    ("SMCR_MAX_MEMORY", "1g", "`1g`: write a number from 0 to 1048576"),
    ("SMCR_SWITCH_OPS", "", "``: write a number from 0 to 1000000"),
    ("SMCR_SWITCH_BYTES", "64k", "`64k`: write a number from 0 to 1099511627776"),
    ("SMCR_PORTS", "9-2", "`9-2`: the range runs backwards; write 2-9"),
    ("SMCR_ADDRS", "10.0.0.0/33", "`10.0.0.0/33`: a prefix length goes from 0 to 32"),
];

/// What a program with one variable more says on standard error.
fn says(net: &Net, name: &str, value: impl AsRef<OsStr>) -> Result<String> {
    let ended = Program::new(net, Load::Library, "true").env(name, value).run()?;
    ensure!(ended.status.success() && ended.out.is_empty(), "{name}: {ended}");
    Ok(ended.err)
}

#[test]
fn each_wrong_value_is_told_in_one_line() -> Result<()> {
    let net = Net::new()?;
    for (name, value, wanted) in WRONG {
        let said = says(&net, name, value)?;
        ensure!(said == format!("smcr: {name} is not understood: {wanted}; using the default\n"), "{name}: {said}");
        let said = says(&net, name, OsStr::from_bytes(b"1\xff"))?;
        ensure!(said == format!("smcr: {name} is not understood: it is no UTF-8; using the default\n"), "{name}: {said}");
    }
    for log in ["info,smcr::switch", "smcr::switch=loud", "=debug", "info;debug"] {
        let said = says(&net, "SMCR_LOG", log)?;
        let how = "write level[,target=level]: off error warn info debug trace; using the default";
        ensure!(said == format!("smcr: SMCR_LOG is not understood: `{log}`: {how}\n"), "{said}");
    }
    // Somebody else's, and right ones.
    for (name, value) in
        [("SMCR_RINGS", "x"), ("SMCR_RING", "4096"), ("SMCR_LOG", "off"), ("SMCR_LOG", "error,smcr::link=trace"), ("SMCR_FLIP", "0,1")]
    {
        let said = says(&net, name, value)?;
        ensure!(said.is_empty(), "{name}={value}: {said}");
    }
    Ok(())
}

/// All of them at once: the connection goes to memory with the defaults.
#[test]
fn what_is_wrong_changes_nothing() -> Result<()> {
    let bed = Bed::new()?;
    let _server = bed.server(&[])?;
    let wrong = WRONG.map(|(name, value, _)| (name, value));
    let client = bed.client(&wrong)?;
    client.open("a", PORTS[0])?;
    client.moves_to_memory("a")?;
    let said = client.program.so_far().1;
    ensure!(said.lines().count() == WRONG.len() && said.lines().all(|l| l.starts_with("smcr: SMCR_")), "{said}");
    let all = bed.socks()?;
    let end = all.iter().find(|s| s["role"] == "client");
    ensure!(end.is_some_and(|s| s["tx"]["ring"] == 262_144 || flipping()), "{all:?}");
    Ok(())
}

/// A connection goes to memory and back with this in the environment; the lines that were told.
fn told(bed: &Bed, env: &[(&str, &str)]) -> Result<Vec<String>> {
    let client = bed.client(env)?;
    client.open("a", PORTS[0])?;
    client.moves_to_memory("a")?;
    client.tell("do a fdopen")?;
    client.tell("talk a 100 1000")?;
    let said = client.program.so_far().1;
    let begin = format!("smcr[{}] ", client.program.pid());
    let lines = said.lines().map(|l| l.strip_prefix(&begin).map(str::to_owned));
    lines.collect::<Option<_>>().with_context(|| format!("{env:?}: {said}"))
}

/// What is asked for, what there is of it, and what each line begins with.
const ASKED: [(&str, &[&str], &[&str]); 5] = [
    (
        "debug",
        &[
            "INFO smcr::control: settings",
            "DEBUG smcr::rendezvous: offer sent",
            "DEBUG smcr::rendezvous: peer proved",
            "DEBUG smcr::switch: sending moves to memory",
            "DEBUG smcr::switch: sending moves to TCP",
            PINNED,
        ],
        &["ERROR ", "WARN ", "INFO ", "DEBUG "],
    ),
    ("info", &["INFO smcr::control: settings"], &["ERROR ", "WARN ", "INFO "]),
    ("smcr::switch=debug", &["DEBUG smcr::switch: sending moves to memory"], &["DEBUG smcr::switch: ", "INFO smcr::switch: "]),
    ("info,smcr::reason=debug", &["INFO smcr::control: settings", PINNED], &["INFO ", "DEBUG smcr::reason: "]),
    ("off", &[], &[]),
];

/// Why the connection goes back, which is told once.
const PINNED: &str = "DEBUG smcr::reason: on TCP fd=";

#[test]
fn levels_and_targets_of_the_log() -> Result<()> {
    let bed = Bed::new()?;
    let _server = bed.server(&[])?;
    for (log, wanted, allowed) in ASKED {
        let lines = told(&bed, &[("SMCR_LOG", log)])?;
        for part in wanted {
            ensure!(lines.iter().any(|l| l.starts_with(part)), "{log}: no {part}: {lines:#?}");
        }
        ensure!(lines.iter().all(|l| allowed.iter().any(|a| l.starts_with(a))), "{log}: {lines:#?}");
        let pinned = lines.iter().filter(|l| l.starts_with(PINNED) && l.ends_with("reason=\"stdio\"")).count();
        ensure!(pinned == usize::from(wanted.contains(&PINNED)), "{log}: {lines:#?}");
    }
    ensure!(told(&bed, &[])?.is_empty());
    Ok(())
}

#[test]
fn a_file_for_the_log() -> Result<()> {
    const PLAIN: &str = "
import socket
l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); s = l.accept()[0]
for i in range(100): c.send(b'x'); s.recv(1)
";
    let net = Net::new()?;
    let dir = tempfile::TempDir::new()?;
    let run = |file: &Path| Program::new(&net, Load::Library, python()?).args(["-c", PLAIN]).env("SMCR_LOG", "info").env("SMCR_LOG_FILE", file).run();
    let file = dir.path().join(OsStr::from_bytes(b"log\xff")); // a path need not be text
    for times in [1, 2] {
        let ended = run(&file)?;
        ensure!(ended.status.success() && ended.err.is_empty(), "{ended}");
        let said = std::fs::read_to_string(&file)?;
        ensure!(said.matches("INFO smcr::control: settings").count() == times, "{said}");
    }
    let ended = run(&dir.path().join("nowhere/log"))?;
    ensure!(ended.status.success() && ended.err == "smcr: SMCR_LOG_FILE cannot be opened; nothing is told\n", "{ended}");
    Ok(())
}
