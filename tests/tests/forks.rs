//! A server that forks for each connection, and whose children end without close: what they held
//! in the family's table is free again.

mod hostile_common;

use anyhow::{Context, Result, ensure};
use hostile_common::server;
use smcr_tests::apps::PORT;
use smcr_tests::net::Net;
use smcr_tests::page::Page;
use smcr_tests::process::{Load, Program};
use smcr_tests::twice::python;

const CONNECTIONS: u32 = 2500;

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
    Program::new(&net, Load::Native, python()?).args(["-c", &client]).run_ok()?;
    let used = Page::of(server.pid())?.context("the server's table")?.high()?;
    println!("{used} records for {CONNECTIONS} connections");
    ensure!(used < CONNECTIONS / 10, "{used} records are in use");
    Ok(())
}
