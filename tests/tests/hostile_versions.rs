//! An older and a newer library as peers: they agree on nothing, so both stay on TCP and say why.

mod hostile_common;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use hostile_common::{Talker, connections};
use smcr_proto::rendezvous::VERSION_HIGH;
use smcr_tests::apps::PORT;
use smcr_tests::library;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program};
use smcr_tests::twice::compile_with;

/// The library with a raised protocol version, built into a directory of its own.
fn newer() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = library::work_dir().join("newer");
    let out = Command::new(cargo)
        .current_dir(library::source_dir())
        .args(["build", "-p", "smcr-preload", "--target-dir"])
        .arg(&target)
        .env("SMCR_TEST_VERSION", (VERSION_HIGH + 1).to_string())
        .env_remove("LD_PRELOAD")
        .output()?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let built = target.join("debug/libsmcr.so");
    ensure!(built.is_file(), "{} is not there", built.display());
    Ok(built)
}

/// A server that answers each connection in a thread.
fn echo() -> Result<PathBuf> {
    compile_with("cc", "echo_many", &["echo_many.c"], &["-O1", "-g", "-pthread"])
}

#[test]
fn versions_without_an_overlap_stay_on_tcp() -> Result<()> {
    let newer = newer()?;
    let echo = echo()?;
    let port = PORT.to_string();
    let preload = format!("LD_PRELOAD={}", newer.display());
    let env = ["env", preload.as_str()];
    for newer_server in [true, false] {
        let net = Net::new()?;
        let before: &[&str] = if newer_server { &env } else { &["env"] };
        let server = Program::new(&net, Load::Library, before[0]).args(&before[1..]).args([echo.as_os_str()]).args(["threads", &port]).start()?;
        net.wait_listen(PORT)?;
        let before: &[&str] = if newer_server { &["env"] } else { &env };
        let line = ["127.0.0.1", port.as_str()];
        let mut client = Talker::start_through(&net, Load::Library, before, &line)?;
        client.ensure_on_tcp("version")?;
        let theirs = connections(server.pid())?;
        let c = theirs.iter().find(|c| c["role"] == "server").context("the server's end")?;
        println!("newer server: {newer_server}; the server says {}", c["reason"]["name"]);
        ensure!(c["tx"]["producer"] == 0, "{c}");
        client.end()?;
    }
    Ok(())
}

/// Two newer ones agree with each other: it is the version and nothing else.
#[test]
fn two_newer_ones_agree() -> Result<()> {
    let newer = newer()?;
    let echo = echo()?;
    let preload = format!("LD_PRELOAD={}", newer.display());
    let port = PORT.to_string();
    let net = Net::new()?;
    let _server = Program::new(&net, Load::Library, "env").args([preload.as_str()]).args([echo.as_os_str()]).args(["threads", &port]).start()?;
    net.wait_listen(PORT)?;
    let line = ["127.0.0.1", port.as_str()];
    let mut client = Talker::start_through(&net, Load::Library, &["env", &preload], &line)?;
    client.ensure_accelerated()?;
    client.end()
}
