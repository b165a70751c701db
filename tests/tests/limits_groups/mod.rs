//! Both ends in a cgroup with few processes or little memory. Part of the tests of limits.rs.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Result, ensure};
use smcr_tests::process::eventually;
use smcr_tests::slow::only_slow;
use smcr_tests::twice::{Case, Ends, Outcome};

use super::{case, ensure_moved};

/// A cgroup of this test's own with a limit; None where none can be made.
struct Group(PathBuf);

impl Group {
    fn new(controller: &str, limits: &[(&str, &str, &str)]) -> Option<Group> {
        let name = format!("smcr-test-{}-{controller}", std::process::id());
        for (root, v2) in [(format!("/sys/fs/cgroup/{controller}"), false), ("/sys/fs/cgroup".into(), true)] {
            let dir = PathBuf::from(root).join(&name);
            if std::fs::create_dir(&dir).is_err() {
                continue;
            }
            let group = Group(dir);
            let set = |(old, new, value): &(&str, &str, &str)| std::fs::write(group.0.join(if v2 { new } else { old }), value).is_ok();
            if limits.iter().all(set) {
                return Some(group);
            }
        }
        None
    }

    /// The most that a process in it has had mapped of regions while `work` was done (bytes).
    fn most_mapped<T>(&self, work: impl FnOnce() -> T) -> (T, u64) {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = 0;
                while !done.load(Relaxed) {
                    let all = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
                    most = all.lines().map(mapped).fold(most, u64::max);
                    std::thread::sleep(Duration::from_millis(1));
                }
                most
            });
            let result = work();
            done.store(true, Relaxed);
            (result, watch.join().unwrap_or(u64::MAX))
        })
    }

    /// What starts a program in it.
    fn line(&self) -> String {
        format!("echo $$ >{}/cgroup.procs && exec \"$0\" \"$@\"", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was killed is in it for a moment more.
        let _ = eventually("the cgroup is empty", || Ok(std::fs::remove_dir(&self.0).is_ok()));
    }
}

/// Regions that a process has mapped now (bytes).
fn mapped(pid: &str) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let size = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some(u64::from_str_radix(to, 16).ok()? - u64::from_str_radix(from, 16).ok()?)
    };
    maps.lines().filter(|line| line.contains("smcr-region")).filter_map(size).sum()
}

/// What came of it with the library, and the most that an end had mapped of regions.
fn in_group(group: &Group, case: &Case) -> Result<(Outcome, u64)> {
    let native = case.run(Ends::Neither)?.transcript;
    let line = group.line();
    let run = |ends| -> Result<(Outcome, u64)> {
        let (got, most) = group.most_mapped(|| case.run_through(ends, &["sh", "-c", &line].map(OsStr::new)));
        let got = got?;
        ensure!(got.transcript == native, "{ends:?}: {}\n{}", got.transcript, got.notes);
        Ok((got, most))
    };
    ensure!(run(Ends::Neither)?.1 == 0, "regions natively");
    run(Ends::Both)
}

/// No process and no thread more than the two ends themselves.
#[test]
fn no_more_processes() -> Result<()> {
    let Some(group) = Group::new("pids", &[("pids.max", "pids.max", "2")]) else {
        println!("left out: no cgroup of processes can be made here");
        return Ok(());
    };
    ensure_moved(&in_group(&group, &case("streams", "records")?)?.0)
}

/// Little memory for both ends and all that they share: each maps no more than a quarter of it, and some.
#[test]
fn little_memory() -> Result<()> {
    const LITTLE: u64 = 12 << 20;
    let limit = LITTLE.to_string();
    let Some(group) = Group::new("memory", &[("memory.limit_in_bytes", "memory.max", &limit)]) else {
        println!("left out: no cgroup of memory can be made here");
        return Ok(());
    };
    for name in ["records", "many"] {
        let (_, most) = in_group(&group, &case("streams", name)?)?;
        println!("{name}: {} KiB of regions mapped by an end, of {} KiB", most >> 10, LITTLE >> 10);
        ensure!(most <= LITTLE / 4, "{name}: {most} bytes of regions of {LITTLE}");
        if most == 0 {
            return Err(only_slow(format!("{name}: no region was seen")));
        }
    }
    Ok(())
}
