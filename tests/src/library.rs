//! Owns: finding libsmcr.so. `SMCR_LIB` names a built one; else cargo builds it, once for each
//! test program. The tests use a copy of their own, so that a build meanwhile doesn't disturb them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// The library to preload.
pub fn path() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| find().expect("libsmcr.so"))
}

/// A directory of the build for what the tests make.
pub fn work_dir() -> PathBuf {
    let me = std::env::current_exe().expect("current_exe");
    // TARGET/PROFILE/deps/NAME-HASH
    let target = me.ancestors().nth(3).expect("target directory");
    let dir = target.join("smcr-tests");
    std::fs::create_dir_all(&dir).expect("create the work directory");
    dir
}

/// The directory of this package, where the C and Python programs are.
pub fn source_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn find() -> Result<PathBuf> {
    let built = match std::env::var_os("SMCR_LIB") {
        Some(path) => PathBuf::from(path),
        None => build("smcr-preload", "libsmcr.so")?,
    };
    ensure!(built.is_file(), "{} is not there", built.display());
    let copy = work_dir().join(format!("libsmcr-{}.so", std::process::id()));
    std::fs::copy(&built, &copy).with_context(|| format!("copy {}", built.display()))?;
    remove_old_copies();
    Ok(copy)
}

/// The command line of the administrator: `SMCR_CTL`, or built.
pub fn smcrctl() -> Result<PathBuf> {
    std::env::var_os("SMCR_CTL").map_or_else(|| build("smcr-admin", "smcrctl"), |path| Ok(path.into()))
}

/// Builds a package in release mode and says where the file of that name is.
pub fn build(package: &str, file: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let out = Command::new(cargo)
        .current_dir(source_dir())
        .args(["build", "--release", "-p", package, "--message-format=json"])
        .output()
        .context("cargo build")?;
    ensure!(out.status.success(), "cargo build: {}", String::from_utf8_lossy(&out.stderr));
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else {
            continue;
        };
        let mut paths: Vec<_> = message["filenames"].as_array().cloned().unwrap_or_default();
        paths.push(message["executable"].clone());
        for path in paths.iter().filter_map(|p| p.as_str()) {
            if Path::new(path).file_name().is_some_and(|name| name == file) {
                return Ok(path.into());
            }
        }
    }
    bail!("cargo did not say where {file} is")
}

/// Copies of earlier runs are removed when their process is gone.
fn remove_old_copies() {
    let Ok(dir) = std::fs::read_dir(work_dir()) else {
        return;
    };
    for entry in dir.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|n| n.strip_prefix("libsmcr-")?.strip_suffix(".so")?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The build for tests, with faults on demand (`preload/src/fault.rs`).
pub fn with_faults() -> Result<&'static Path> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock();
    if BUILT.get().is_none() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let target = work_dir().join("faults");
        let out = Command::new(cargo)
            .current_dir(source_dir())
            .args(["build", "-p", "smcr-preload", "--features", "faults", "--target-dir"])
            .arg(&target)
            .env_remove("LD_PRELOAD")
            .output()?;
        ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let _ = BUILT.set(target.join("debug/libsmcr.so"));
    }
    BUILT.get().map(PathBuf::as_path).context("built")
}
