//! Other users: pages of a process and of its user are not theirs to read or to write.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bed::Bed;

/// A user that no process of a test has.
const NOBODY: &str = "65534";

#[test]
fn pages_of_another_user() -> Result<()> {
    let bed = Bed::enabled()?;
    let server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.open("a", 7000)?;
    let page = bed.page();
    let mode = |path: &std::path::Path| -> Result<u32> { Ok(std::fs::metadata(path)?.permissions().mode() & 0o777) };
    ensure!(mode(&page)? == 0o400 && mode(page.parent().context("directory")?)? == 0o700);
    // Nothing above them keeps anybody out.
    let bed_of = page.ancestors().nth(3).context("bed")?;
    std::fs::set_permissions(bed_of, std::fs::Permissions::from_mode(0o755))?;
    let fds = std::fs::read_dir(format!("/proc/{}/fd", server.pid()))?;
    let is_family = |p: &std::path::PathBuf| {
        std::fs::read_link(p).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:smcr-family"))
    };
    let family = fds.filter_map(|e| Some(e.ok()?.path())).find(is_family).context("family page")?;
    // SAFETY: geteuid(2) has no pointers.
    if unsafe { libc::geteuid() } != 0 {
        println!("not root: only the modes were looked at");
        return Ok(());
    }
    for path in [&page, &family] {
        let path = path.to_str().context("path")?;
        for redirection in ["<", ">>"] {
            let open = |uid: &str| {
                let as_user = ["--reuid", uid, "--regid", uid, "--clear-groups", "sh", "-c"];
                Command::new("setpriv").args(as_user).arg(format!(": {redirection}'{path}'")).output()
            };
            let refused = open(NOBODY)?;
            let told = String::from_utf8_lossy(&refused.stderr).into_owned();
            ensure!(!refused.status.success() && told.contains("ermission denied"), "{redirection} {path}: {told}");
            // The same look by root finds the file.
            ensure!(open("0")?.status.success(), "{redirection} {path}");
        }
    }
    client.moves_to_memory("a")
}
