//! Owns: saying what hung processes were doing: kernel wait channels, the system call of each
//! thread, and user-space stacks where gdb is installed.

use std::fmt::Write;
use std::fs;
use std::process::{Command, Stdio};

/// A report on these processes.
pub fn all(pids: &[i32]) -> String {
    let mut text = String::new();
    for &pid in pids {
        one(&mut text, pid);
    }
    text
}

/// The user-space stacks of a process as gdb shows them; None: it is not installed, or was refused.
pub fn stacks(pid: i32) -> Option<String> {
    let gdb = Command::new("timeout")
        .args(["20", "gdb", "-p", &pid.to_string(), "-batch", "-nx"])
        .args(["-ex", "set pagination off", "-ex", "thread apply all bt 25"])
        .env_remove("LD_PRELOAD")
        .env_remove("DEBUGINFOD_URLS")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    gdb.status.success().then(|| String::from_utf8_lossy(&gdb.stdout).into_owned())
}

fn one(text: &mut String, pid: i32) {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let command = read(format!("/proc/{pid}/cmdline")).replace('\0', " ");
    let _ = writeln!(text, "=== process {pid}: {command}");
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    for thread in threads.flatten() {
        let at = thread.path().display().to_string();
        let _ = writeln!(
            text,
            "thread {} in {}, system call {}{}",
            thread.file_name().to_string_lossy(),
            read(format!("{at}/wchan")),
            read(format!("{at}/syscall")),
            read(format!("{at}/stack")),
        );
    }
    match stacks(pid) {
        Some(frames) => {
            for line in frames.lines().filter(|l| l.starts_with('#') || l.starts_with("Thread")) {
                let _ = writeln!(text, "{line}");
            }
        }
        None => {
            let _ = writeln!(text, "(no user-space stacks: gdb is not there or was refused)");
        }
    }
}
