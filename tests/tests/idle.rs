//! Idle costs nothing: programs that wait on accelerated connections, in every way there is, use
//! no clock tick and make no context switch in ten seconds; and their memory is a page.

use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use smcr_tests::library;
use smcr_tests::net::Net;
use smcr_tests::process::{Load, Program, Running, eventually, flipping};
use smcr_tests::twice;

/// Clock ticks and context switches of all threads of a process so far.
fn used(pid: i32) -> Result<(u64, u64)> {
    let (mut ticks, mut switches) = (0, 0);
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let at = thread?.path();
        let stat = fs::read_to_string(at.join("stat"))?;
        let fields: Vec<&str> = stat.rsplit(") ").next().context("stat")?.split_whitespace().collect();
        ticks += fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        for line in fs::read_to_string(at.join("status"))?.lines() {
            if line.contains("ctxt_switches") {
                switches += line.rsplit('\t').next().context("status")?.parse::<u64>()?;
            }
        }
    }
    Ok((ticks, switches))
}

#[test]
fn idle_programs_use_nothing() -> Result<()> {
    let cases = twice::cases("idle")?;
    let nets: Vec<Net> = cases.iter().map(|_| Net::new()).collect::<Result<_>>()?;
    let mut all: Vec<(String, Running)> = Vec::new();
    for (case, net) in cases.iter().zip(&nets) {
        let (a, b) = UnixStream::pair()?;
        for (side, ctl) in [("a", a), ("b", b)] {
            let program = Program::new(net, Load::Library, &case.program).args([case.name.as_str(), side]).fd(ctl.into(), 3).start()?;
            all.push((format!("{} {side}", case.name), program));
        }
        for (name, program) in &all[all.len() - 2..] {
            eventually(name, || {
                ensure!(!program.so_far().0.contains("DIED"), "{:?}", program.so_far());
                Ok(program.so_far().0.contains("idle"))
            })?;
        }
        let warm = all[all.len() - 1].1.so_far().1;
        ensure_accelerated(&case.name, &warm)?;
    }
    // Long enough for every spin and every timer of a transition to be over.
    std::thread::sleep(Duration::from_secs(3));
    let before: Vec<_> = all.iter().map(|(_, p)| used(p.pid())).collect::<Result<_>>()?;
    let lo_before: Vec<_> = nets.iter().map(|n| n.lo()).collect::<Result<_>>()?;
    std::thread::sleep(Duration::from_secs(10));
    let mut busy = String::new();
    for ((name, program), before) in all.iter_mut().zip(before) {
        ensure!(!program.gone()?, "{name} ended: {:?}", program.so_far());
        let after = used(program.pid())?;
        if after != before {
            busy += &format!("{name}: {} ticks, {} context switches\n", after.0 - before.0, after.1 - before.1);
        }
    }
    ensure!(busy.is_empty(), "not idle:\n{busy}");
    for ((case, net), before) in cases.iter().zip(&nets).zip(lo_before) {
        let crossed = net.lo()?.packets - before.packets;
        // A ring that nobody reads is left for TCP, whose full window the kernel probes now and then, at
        // intervals that double: two in this time, each with its answer.
        let probes = if case.name == "send" { 4 } else { 0 };
        ensure!(crossed <= probes, "{}: {crossed} packets crossed lo", case.name);
    }
    Ok(())
}

/// The warm-up of the connecting end left TCP.
fn ensure_accelerated(name: &str, err: &str) -> Result<()> {
    for line in err.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let ["#warm", payload, lo] = words[..] {
            let (payload, lo) = (payload.parse::<u64>()?, lo.parse::<u64>()?);
            ensure!(lo * 20 <= payload || flipping(), "{name}: {lo} bytes on lo for {payload}");
            return Ok(());
        }
    }
    anyhow::bail!("{name}: no warm-up: {err}")
}

/// Small messages keep to the header's page, large ones do not, and idleness gives the others' pages back (`engine::near`).
#[test]
fn a_connection_of_small_messages_or_none_has_one_page() -> Result<()> {
    let net = Net::new()?;
    let script = library::source_dir().join("py/pages.py");
    let python = |args: &[&str]| Program::new(&net, Load::Library, twice::python()?).args([script.as_os_str()]).args(args).start();
    let server = python(&["serve"])?;
    eventually("the server's port", || Ok(server.so_far().0.ends_with('\n')))?;
    let port = server.so_far().0.trim().trim_start_matches("port ").to_owned();
    let said = python(&["use", &port])?.wait(Duration::from_secs(120))?;
    ensure!(said.status.success(), "{said}");
    for (step, least, most) in [("small", 1, 1), ("large", 20, 140), ("idle", 1, 1), ("again", 1, 1)] {
        let line = said.out.lines().find_map(|l| l.strip_prefix(step));
        let pages: Vec<u32> = line.context(step)?.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        ensure!(pages.len() == 8, "{said}");
        ensure!(flipping() || pages.iter().all(|n| (least..=most).contains(n)), "{step}: {pages:?}");
    }
    Ok(())
}
