//! What the control group allows: memory, against which rings count, and processor time, which polling
//! uses up. A limit of a group holds for all below it. Used by `machine`.

use std::path::{Path, PathBuf};

use super::{Finding, Grade};
use crate::out;

/// The limits of the group that we are in and those above it, the tightest of each.
#[derive(Debug, Default, PartialEq)]
struct Limits {
    memory: Option<u64>,
    /// Processors' worth of time.
    processors: Option<f64>,
}

pub fn check() -> Finding {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = Limits::read(Path::new("/sys/fs/cgroup"), &groups);
    let mut told = Vec::new();
    if let Some(bytes) = limits.memory {
        told.push(format!("memory {} (rings count against it)", out::bytes(bytes)));
    }
    if let Some(n) = limits.processors {
        told.push(format!("{n:.2} processors' time (polling uses it up)"));
    }
    match told.is_empty() {
        true => Finding::new(Grade::Info, "container", "no limit of memory or processor time here"),
        false => Finding::new(Grade::Info, "container", told.join(", "))
            .mend("rings take a quarter of the memory at most (max_memory); SMCR_SPIN_US=0 and measure, where time is limited"),
    }
}

impl Limits {
    /// `groups` is /proc/self/cgroup; both versions of control groups may be there at once.
    fn read(root: &Path, groups: &str) -> Limits {
        let mut limits = Limits::default();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(kinds), Some(group)) = (parts.next(), parts.next()) else { continue };
            let kinds: Vec<&str> = kinds.split(',').collect();
            if kinds == [""] {
                // In the hybrid layout version 2 lies beside version 1.
                for root in [root.to_path_buf(), root.join("unified")] {
                    limits.take(&root, group, version_2);
                }
            } else if kinds.iter().any(|kind| ["memory", "cpu"].contains(kind)) {
                limits.take(&root.join(kinds.join(",")), group, version_1);
            }
        }
        limits
    }

    /// Takes what a group and those above it say. In a container the group may be shown as the root.
    fn take(&mut self, root: &Path, group: &str, read: fn(&Path) -> Limits) {
        let mut dirs: Vec<PathBuf> = Path::new(group).ancestors().map(|above| root.join(above.strip_prefix("/").unwrap_or(above))).collect();
        dirs.push(root.to_path_buf());
        for dir in dirs {
            let found = read(&dir);
            let memory = [self.memory, found.memory];
            self.memory = memory.into_iter().flatten().min();
            let processors = [self.processors, found.processors];
            self.processors = processors.into_iter().flatten().min_by(f64::total_cmp);
        }
    }
}

fn text(dir: &Path, file: &str) -> Option<String> {
    Some(std::fs::read_to_string(dir.join(file)).ok()?.trim().to_string())
}

fn version_2(dir: &Path) -> Limits {
    let quota = |text: String| -> Option<f64> {
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    };
    Limits { memory: text(dir, "memory.max").and_then(|t| t.parse().ok()), processors: text(dir, "cpu.max").and_then(quota) }
}

fn version_1(dir: &Path) -> Limits {
    let number = |file| text(dir, file).and_then(|t| t.parse::<i64>().ok());
    let quota = number("cpu.cfs_quota_us").filter(|q| *q > 0);
    let period = number("cpu.cfs_period_us").filter(|p| *p > 0);
    Limits {
        // No limit is shown as a number near the largest.
        memory: number("memory.limit_in_bytes").filter(|n| *n < 1 << 60).map(|n| n as u64),
        processors: quota.zip(period).map(|(quota, period)| quota as f64 / period as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_of_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let read = |groups: &str| Limits::read(dir.path(), groups);
        assert_eq!(read("0::/a/b\n"), Limits::default());
        put("a/b/memory.max", "max\n");
        put("a/memory.max", "1000\n");
        put("a/b/cpu.max", "50000 100000\n");
        put("a/cpu.max", "max 100000\n");
        assert_eq!(read("0::/a/b\n"), Limits { memory: Some(1000), processors: Some(0.5) });
        put("memory/c/memory.limit_in_bytes", "700\n");
        put("memory/memory.limit_in_bytes", "9223372036854771712\n");
        put("cpu,cpuacct/c/cpu.cfs_quota_us", "-1\n");
        put("cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
        let both = "4:memory:/c\n3:cpu,cpuacct:/c\n2:name=systemd:/\n0::/a/b\n";
        assert_eq!(read(both), Limits { memory: Some(700), processors: Some(0.5) });
        assert_eq!(read("4:memory:/elsewhere\n"), Limits::default());
    }
}
