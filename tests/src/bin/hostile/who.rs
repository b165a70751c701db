//! Owns: as whom the hostile program runs (`HOSTILE_AS` in its environment), and leaving a namespace.

use anyhow::{Context, Result, bail, ensure};
use std::io::Error;

const NOBODY: u32 = 65534;

/// nobody; "namespace": nobody, in a user namespace of its own whose root it is; "unmapped": the same, where nobody has a uid.
pub fn become_it() -> Result<()> {
    let Some(who) = std::env::var_os("HOSTILE_AS") else { return Ok(()) };
    become_nobody()?;
    match who.to_str().context("HOSTILE_AS")? {
        "nobody" => Ok(()),
        "unmapped" => unshare(libc::CLONE_NEWUSER),
        "namespace" => {
            unshare(libc::CLONE_NEWUSER)?;
            std::fs::write("/proc/self/setgroups", "deny").context("setgroups")?;
            std::fs::write("/proc/self/uid_map", format!("0 {NOBODY} 1")).context("uid_map")?;
            std::fs::write("/proc/self/gid_map", format!("0 {NOBODY} 1")).context("gid_map")?;
            // SAFETY: plain system calls.
            ensure!(unsafe { (libc::geteuid(), libc::getegid()) } == (0, 0), "not root of its namespace");
            Ok(())
        }
        other => bail!("unknown HOSTILE_AS={other}"),
    }
}

/// From now on this process is another user's, without groups or capabilities. No other thread may run yet.
fn become_nobody() -> Result<()> {
    // SAFETY: plain system calls; the list of groups is empty. The last makes the files of /proc/self its own again.
    unsafe {
        ensure!(libc::setgroups(0, std::ptr::null()) == 0, "setgroups: {}", Error::last_os_error());
        ensure!(libc::setresgid(NOBODY, NOBODY, NOBODY) == 0, "setresgid: {}", Error::last_os_error());
        ensure!(libc::setresuid(NOBODY, NOBODY, NOBODY) == 0, "setresuid: {}", Error::last_os_error());
        ensure!(libc::prctl(libc::PR_SET_DUMPABLE, 1) == 0, "dumpable");
    }
    Ok(())
}

pub fn unshare(what: libc::c_int) -> Result<()> {
    // SAFETY: a plain system call.
    ensure!(unsafe { libc::unshare(what) } == 0, "unshare: {}", Error::last_os_error());
    Ok(())
}
