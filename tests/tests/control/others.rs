//! Other users: pages of a process and of its user, its rings and channels are not theirs to read or to write. What is shared with
//! peers can't be torn away.

use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use smcr_tests::twice::python;

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
    let is_family = |p: &std::path::PathBuf| std::fs::read_link(p).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:smcr-family"));
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

const F_GET_SEALS: libc::c_int = 1034;
const F_SEAL_FUTURE_WRITE: libc::c_int = 0x10;

/// Mappings of the library's memfds: names, and their files in /proc.
fn memory(pid: i32) -> Result<Vec<(String, String)>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let ours = maps.lines().filter_map(|line| {
        let name = line.split("/memfd:smcr-").nth(1)?.split(' ').next()?;
        let range = line.split(' ').next()?;
        Some((name.to_owned(), format!("/proc/{pid}/map_files/{range}")))
    });
    Ok(ours.collect())
}

/// Nobody can open the memory of a connection, by a descriptor or by where it is mapped, or take a channel, an eventfd or a connection
/// out of a process.
#[test]
fn memory_and_channels_of_another_user() -> Result<()> {
    // SAFETY: geteuid(2) has no pointers.
    if unsafe { libc::geteuid() } != 0 {
        println!("left out: needs root");
        return Ok(());
    }
    let bed = Bed::enabled()?;
    let server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.open("a", 7000)?;
    client.moves_to_memory("a")?;
    for pid in [server.pid(), client.program.pid()] {
        let memory = memory(pid)?;
        for name in ["family", "region"] {
            ensure!(memory.iter().any(|(n, _)| n == name), "no {name}: {memory:?}");
        }
        let mut files: Vec<String> = memory.into_iter().map(|(_, file)| file).collect();
        files.push(format!("/proc/{pid}/mem"));
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            let is = std::fs::read_link(entry.path())?.to_string_lossy().into_owned();
            numbers.push(entry.file_name().to_string_lossy().into_owned());
            if is.starts_with("/memfd:") {
                files.push(entry.path().display().to_string());
            }
        }
        // Prints how many files it could open to read and to write, and how many descriptors it could take.
        const TRIES: &str = "
import ctypes, os, sys
call = ctypes.CDLL(None).syscall
pid, (files, numbers) = int(sys.argv[1]), [a.split() for a in sys.argv[2:]]
def opens(f, how):
    try: os.close(os.open(f, how))
    except PermissionError: return 0
    return 1
process = call(434, pid, 0)
print(sum(opens(f, os.O_RDONLY) for f in files), sum(opens(f, os.O_RDWR) for f in files),
      sum(call(438, process, int(n), 0) >= 0 for n in numbers))
";
        for (uid, opened, taken) in [(NOBODY, 0, 0), ("0", files.len(), numbers.len())] {
            let out = Command::new("setpriv")
                .args(["--reuid", uid, "--regid", uid, "--clear-groups"])
                .arg(python()?)
                .args(["-c", TRIES, &pid.to_string(), &files.join(" "), &numbers.join(" ")])
                .output()?;
            let said = String::from_utf8_lossy(&out.stdout).trim().to_owned();
            let told = String::from_utf8_lossy(&out.stderr).into_owned();
            ensure!(said == format!("{opened} {opened} {taken}"), "{uid}: {said} of {files:?}, {numbers:?}; {told}");
        }
    }
    Ok(())
}

/// The size of all that is mapped is fixed, and nobody can take that back; what peers are only to read they can't map to write.
#[test]
fn seals_of_the_librarys_memory() -> Result<()> {
    let bed = Bed::enabled()?;
    let server = bed.server(&[])?;
    let client = bed.client(&[])?;
    client.open("a", 7000)?;
    client.moves_to_memory("a")?;
    let fixed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let mut seen = Vec::new();
    for pid in [server.pid(), client.program.pid()] {
        for (name, file) in memory(pid)? {
            let Ok(file) = std::fs::File::open(&file) else {
                println!("{name}: only root can open what is mapped");
                continue;
            };
            // SAFETY: fcntl(2) on a descriptor of ours, without a pointer.
            let seals = unsafe { libc::fcntl(file.as_raw_fd(), F_GET_SEALS) };
            ensure!(seals >= 0 && seals & fixed == fixed, "{name}: {seals:#x}");
            let is_for_readers = seals & F_SEAL_FUTURE_WRITE != 0;
            ensure!(is_for_readers == (name == "wake"), "{name}: {seals:#x}");
            seen.push(name);
        }
    }
    println!("{seen:?}");
    // SAFETY: geteuid(2) has no pointers.
    ensure!(unsafe { libc::geteuid() } != 0 || seen.iter().any(|n| n == "region"), "{seen:?}");
    Ok(())
}
