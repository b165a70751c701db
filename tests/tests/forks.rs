//! A server that forks for each connection, and whose children end without close: what they held
//! in the family's table is free again.

mod hostile_common;

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use hostile_common::server;
use smcr_proto::page::header;
use smcr_tests::apps::PORT;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program};
use smcr_tests::twice::python;

const CONNECTIONS: u32 = 2500;

/// Socket records that were ever in use, in the family page of a process.
fn records(pid: i32) -> Result<u32> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let at = entry?.path();
        let name = std::fs::read_link(&at)?;
        if name.to_string_lossy().contains("smcr-family") {
            let mut word = [0; 4];
            File::open(&at)?.read_exact_at(&mut word, header::SOCK_HIGH as u64)?;
            return Ok(u32::from_ne_bytes(word));
        }
    }
    anyhow::bail!("no family page")
}

#[test]
fn children_that_end_without_close() -> Result<()> {
    let net = Net::new()?;
    let server = server(&net, Load::Library, "exits", &[])?;
    let client = format!(
        "import socket\n\
         for i in range({CONNECTIONS}):\n\
         \x20   s = socket.create_connection(('127.0.0.1', {PORT}))\n\
         \x20   s.sendall(b'x' * 10)\n\
         \x20   assert s.recv(100)\n\
         \x20   s.close()\n"
    );
    Program::new(&net, Load::Native, python()?)
        .args(["-c", &client])
        .run_ok()?;
    let used = records(server.pid()).context("the server's table")?;
    println!("{used} records for {CONNECTIONS} connections");
    ensure!(used < CONNECTIONS / 10, "{used} records are in use");
    Ok(())
}
