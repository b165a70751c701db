//! nginx with curl and wrk: one and four workers, sendfile on and off, daemon on, reload and the
//! USR2 upgrade under load. What curl fetched is compared; what wrk read is the payload.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use smcr_tests::apps::{LONG, Nginx, PORT, signal, wrk, wrk_bytes};
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program, eventually, which};
use smcr_tests::share::{lo_share, measure};

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

/// A reload starts new workers while the old ones finish; clients see nothing of it.
#[test]
fn reload_under_load() -> Result<()> {
    lo_share("nginx, reload under load", |net, load| {
        let nginx = Nginx::start(net, load, 2, "on")?;
        let traffic = Program::new(net, load, which("wrk")?)
            .args(["-t", "1", "-c", "16", "-d", "4s"])
            .args([format!("http://127.0.0.1:{PORT}/64k")])
            .start()?;
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(800));
            nginx.command(&["-s", "reload"])?;
            nginx.fetch("20m")?;
        }
        let ended = traffic.wait(LONG)?;
        ensure!(ended.status.success() && !ended.out.contains("Non-2xx"), "{ended}");
        let payload = wrk_bytes(&ended.out)? + 3 * (20 << 20);
        nginx.stop()?;
        Ok(payload)
    })
}

/// The upgrade of the binary: nginx hands the listeners to a new master, which has lost the
/// environment and so the library. Connections in the backlog and new ones are served, all whole.
#[test]
fn upgrade_under_load() -> Result<()> {
    for load in Load::BOTH {
        let net = Net::new()?;
        let nginx = Nginx::start(&net, load, 1, "on")?;
        let traffic = Program::new(&net, load, which("wrk")?)
            .args(["-t", "1", "-c", "8", "-d", "5s", "-H", "Connection: close"])
            .args([format!("http://127.0.0.1:{PORT}/1k")])
            .start()?;
        nginx.fetch("20m")?;
        let old = nginx.master()?;
        signal(old, Signal::SIGUSR2)?;
        let pid_file = nginx.dir.path().join("nginx.pid");
        eventually("a new master", || Ok(std::fs::read_to_string(&pid_file).is_ok_and(|t| t.trim().parse::<i32>().is_ok_and(|new| new != old))))?;
        for _ in 0..10 {
            nginx.fetch("64k")?;
        }
        signal(old, Signal::SIGQUIT)?;
        eventually("the old master ends", || Ok(!Path::new(&format!("/proc/{old}")).exists()))?;
        for _ in 0..10 {
            nginx.fetch("64k")?;
        }
        nginx.fetch("20m")?;
        let ended = traffic.wait(LONG)?;
        ensure!(ended.status.success() && !ended.out.contains("Non-2xx"), "{ended}");
        ensure!(wrk_bytes(&ended.out)? > 0, "{ended}");
        nginx.stop()?;
    }
    Ok(())
}

/// The same where the configuration keeps the library for the new master: what both masters' workers serve leaves TCP.
#[test]
fn upgrade_that_keeps_the_library() -> Result<()> {
    lo_share("nginx, upgrade under load", |net, load| {
        let nginx = Nginx::start(net, load, 1, "on")?;
        let file = nginx.dir.path().join("nginx.conf");
        let kept = ["LD_PRELOAD", "SMCR_SWITCH_OPS", "SMCR_SWITCH_BYTES", "SMCR_STRICT", "SMCR_FLIP"];
        let kept: String = kept.iter().map(|name| format!("env {name};\n")).collect();
        std::fs::write(&file, kept + &std::fs::read_to_string(&file)?)?;
        nginx.command(&["-s", "reload"])?;
        let traffic = Program::new(net, load, which("wrk")?)
            .args(["-t", "1", "-c", "16", "-d", "5s"])
            .args([format!("http://127.0.0.1:{PORT}/64k")])
            .start()?;
        nginx.fetch("20m")?;
        let old = nginx.master()?;
        signal(old, Signal::SIGUSR2)?;
        let new = || nginx.master().ok().filter(|new| *new != old);
        eventually("a new master", || Ok(new().is_some()))?;
        signal(old, Signal::SIGQUIT)?;
        eventually("the old master ends", || Ok(!Path::new(&format!("/proc/{old}")).exists()))?;
        let new = new().context("the new master's number")?;
        let maps = std::fs::read_to_string(format!("/proc/{new}/maps"))?;
        ensure!(maps.contains("libsmcr") == (load == Load::Library), "the new master has lost the library");
        let ended = traffic.wait(LONG)?;
        ensure!(ended.status.success() && !ended.out.contains("Non-2xx"), "{ended}");
        nginx.stop()?;
        wrk_bytes(&ended.out)
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
