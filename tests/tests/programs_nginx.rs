//! nginx with curl and wrk: one and four workers, sendfile on and off, daemon on, reload and the
//! USR2 upgrade under load. What curl fetched is compared; what wrk read is the payload.

use std::cell::Cell;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use smcr_tests::apps::{Nginx, PORT, signal};
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program, eventually, which};
use smcr_tests::share::{lo_share, measure};
use smcr_tests::wrk::{Errors, compared, comparing, wrk};

fn ensure_no_errors(out: &str) -> Result<()> {
    ensure!(!out.contains("Socket errors") && !out.contains("Non-2xx"), "{out}");
    Ok(())
}

fn keep_alive(workers: u32, sendfile: &'static str) -> Result<()> {
    for path in ["1k", "64k"] {
        lo_share(&format!("nginx {workers} sendfile {sendfile} {path}"), |net, load| {
            let nginx = Nginx::start(net, load, workers, sendfile)?;
            let (payload, out) = wrk(net, load, 16, 2, path)?;
            ensure_no_errors(&out)?;
            nginx.stop()?;
            Ok(payload)
        })?;
    }
    Ok(())
}

#[test]
fn one_worker_sendfile() -> Result<()> {
    keep_alive(1, "on")
}

#[test]
fn one_worker_plain() -> Result<()> {
    keep_alive(1, "off")
}

#[test]
fn four_workers_sendfile() -> Result<()> {
    keep_alive(4, "on")
}

#[test]
fn four_workers_plain() -> Result<()> {
    keep_alive(4, "off")
}

#[test]
fn empty_answers() -> Result<()> {
    lo_share("nginx, empty answers", |net, load| {
        let nginx = Nginx::start(net, load, 1, "on")?;
        let (payload, out) = wrk(net, load, 16, 2, "empty")?;
        ensure_no_errors(&out)?;
        nginx.stop()?;
        Ok(payload)
    })
}

/// Files by curl, compared: alone, many over one connection, from the middle, sent slowly. And a large one:
/// what nginx has put into its socket before both ends have proved themselves, some megabytes, goes
/// through TCP, so a share can be asked of a large answer only.
#[test]
fn curl_fetches_whole_files() -> Result<()> {
    for sendfile in ["on", "off"] {
        for load in Load::BOTH {
            let net = Net::new()?;
            let nginx = Nginx::start(&net, load, 2, sendfile)?;
            for name in ["1k", "64k", "20m", "20m", "20m"] {
                nginx.fetch(name)?;
            }
            let url = format!("http://127.0.0.1:{PORT}/64k");
            let out = Program::new(&net, load, which("curl")?)
                .args(["-sS", "--fail", "-w", "%{size_download} "])
                .args((0..100).flat_map(|_| ["-o", "/dev/null", url.as_str()]))
                .run_ok()?;
            ensure!(out.split_whitespace().filter(|n| *n == "65536").count() == 100, "{out}");
            nginx.stop()?;
        }
        lo_share(&format!("curl, sendfile {sendfile}"), |net, load| {
            let nginx = Nginx::start(net, load, 2, sendfile)?;
            let size = nginx.add_large_file(LARGE)?;
            let sum = |line: &str| Program::new(net, load, "sh").args(["-c", line]).dir(nginx.dir.path()).run_ok();
            let wanted = sum("md5sum < html/large")?;
            let got = sum(&format!("curl -sS --fail http://127.0.0.1:{PORT}/large | md5sum"))?;
            ensure!(got == wanted, "{got}, not {wanted}");
            nginx.stop()?;
            Ok(size)
        })?;
    }
    Ok(())
}

/// Times the file of 20 MB.
const LARGE: usize = 20;

/// What wrk met natively, which runs first, is what it may meet under the library.
#[derive(Default)]
struct AsNatively(Cell<Option<Errors>>);

impl AsNatively {
    fn ensure(&self, load: Load, errors: Errors, at_most: u64) -> Result<()> {
        println!("{load:?}: {errors:?}");
        match load {
            Load::Native => self.0.set(Some(errors)),
            _ => errors.ensure_as(&self.0.get().context("natively first")?, at_most)?,
        }
        Ok(())
    }
}

const CONNECTIONS: u32 = 16;
const RELOADS: u64 = 3;

/// A reload starts new workers while the old ones finish; clients see of it what they see natively: connections on which nothing is
/// being answered are closed.
#[test]
fn reload_under_load() -> Result<()> {
    let natively = AsNatively::default();
    lo_share("nginx, reload under load", |net, load| {
        let nginx = Nginx::start(net, load, 2, "on")?;
        let traffic = comparing(&nginx, CONNECTIONS, 4, "64k", None)?;
        for _ in 0..RELOADS {
            std::thread::sleep(std::time::Duration::from_millis(800));
            nginx.command(&["-s", "reload"])?;
            nginx.fetch("20m")?;
        }
        let (read, errors) = compared(traffic)?;
        natively.ensure(load, errors, RELOADS * u64::from(CONNECTIONS))?;
        nginx.stop()?;
        Ok(read + RELOADS * (20 << 20))
    })
}

/// Starts the new binary beside the old one and waits for its master, whose number it returns with the old one's.
fn upgrade(nginx: &Nginx) -> Result<(i32, i32)> {
    let old = nginx.master()?;
    signal(old, Signal::SIGUSR2)?;
    let new = || nginx.master().ok().filter(|new| *new != old);
    eventually("a new master", || Ok(new().is_some()))?;
    Ok((old, new().context("the new master's number")?))
}

/// Ends the old master when what it serves is done.
fn end_old(old: i32) -> Result<()> {
    signal(old, Signal::SIGQUIT)?;
    eventually("the old master ends", || Ok(!Path::new(&format!("/proc/{old}")).exists()))
}

fn has_library(pid: i32) -> Result<bool> {
    Ok(std::fs::read_to_string(format!("/proc/{pid}/maps"))?.contains("libsmcr"))
}

/// The upgrade of the binary: nginx hands the listeners to a new master. Of its environment it hands on what its configuration names,
/// and here that is nothing: the new master has no library, and all that it serves is TCP. Connections in the backlog and new ones
/// are served, all whole.
#[test]
fn upgrade_under_load() -> Result<()> {
    let natively = AsNatively::default();
    for load in Load::BOTH {
        let net = Net::new()?;
        let nginx = Nginx::start(&net, load, 1, "on")?;
        let traffic = comparing(&nginx, 8, 5, "1k", Some("Connection: close"))?;
        nginx.fetch("20m")?;
        let (old, new) = upgrade(&nginx)?;
        ensure!(has_library(old)? == (load != Load::Native) && !has_library(new)?, "the new master has the library");
        for _ in 0..10 {
            nginx.fetch("64k")?;
        }
        end_old(old)?;
        let (_, errors) = compared(traffic)?;
        natively.ensure(load, errors, 0)?;
        let share = measure(&net, || {
            for _ in 0..10 {
                nginx.fetch("64k")?;
            }
            nginx.fetch("20m")?;
            Ok((10 << 16) + (20 << 20))
        })?;
        share.ensure_on_tcp("from a new master without the library")?;
        nginx.stop()?;
    }
    Ok(())
}

/// The same where the configuration keeps the library for the new master: what both masters' workers serve leaves TCP.
#[test]
fn upgrade_that_keeps_the_library() -> Result<()> {
    let natively = AsNatively::default();
    lo_share("nginx, upgrade under load", |net, load| {
        let nginx = Nginx::start(net, load, 1, "on")?;
        let file = nginx.dir.path().join("nginx.conf");
        let kept = ["LD_PRELOAD", "SMCR_SWITCH_OPS", "SMCR_SWITCH_BYTES", "SMCR_STRICT", "SMCR_FLIP"];
        let kept: String = kept.iter().map(|name| format!("env {name};\n")).collect();
        std::fs::write(&file, kept + &std::fs::read_to_string(&file)?)?;
        nginx.command(&["-s", "reload"])?;
        let traffic = comparing(&nginx, CONNECTIONS, 5, "64k", None)?;
        nginx.fetch("20m")?;
        let (old, new) = upgrade(&nginx)?;
        end_old(old)?;
        ensure!(has_library(new)? == (load == Load::Library), "the new master has lost the library");
        let (read, errors) = compared(traffic)?;
        // At the reload and at the end of the old master.
        natively.ensure(load, errors, 2 * u64::from(CONNECTIONS))?;
        nginx.stop()?;
        Ok(read + (20 << 20))
    })
}

#[test]
fn one_end_only() -> Result<()> {
    for (server, client) in [(Load::Library, Load::Native), (Load::Native, Load::Library)] {
        let net = Net::new()?;
        let mut nginx = Nginx::start(&net, server, 2, "on")?;
        nginx.load = client;
        let share = measure(&net, || {
            nginx.fetch("20m")?;
            let (payload, out) = wrk(&net, client, 8, 1, "64k")?;
            ensure_no_errors(&out)?;
            Ok(payload + (20 << 20))
        })?;
        share.ensure_on_tcp("one end only")?;
        nginx.stop().context("stop")?;
    }
    Ok(())
}
