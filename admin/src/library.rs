//! Where libsmcr.so is, and the environment that loads it. Used by run, check, bench and
//! enable-unit.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::bail;

const NAME: &str = "libsmcr.so";

/// The library: `$SMCR_LIB`, or beside this program, or where a package puts it.
pub fn find() -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os("SMCR_LIB").filter(|v| !v.is_empty()) {
        let path = PathBuf::from(given);
        if !path.is_file() {
            bail!("SMCR_LIB names {}, which is not a file", path.display());
        }
        return usable(std::path::absolute(path)?);
    }
    let places = places();
    match places.iter().find(|p| p.is_file()) {
        Some(path) => usable(path.clone()),
        None => {
            let tried: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
            bail!("{NAME} not found ({}); set SMCR_LIB to its path", tried.join(", "))
        }
    }
}

fn places() -> Vec<PathBuf> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    let mut places = Vec::new();
    let own = std::env::current_exe().ok();
    if let Some(dir) = own.as_deref().and_then(Path::parent) {
        places.push(dir.join(NAME));
        if let Some(up) = dir.parent() {
            places.push(up.join("lib").join(NAME));
        }
    }
    places.push(Path::new("/usr/lib/smcr").join(NAME));
    places.push(Path::new("/usr/lib").join(triplet).join(NAME));
    places
}

/// The loader takes blanks and colons as separators, and nothing can quote them.
fn usable(path: PathBuf) -> anyhow::Result<PathBuf> {
    if path.as_os_str().as_bytes().iter().any(|b| b" :\t\n".contains(b)) {
        bail!("LD_PRELOAD cannot name {}, which has a blank or colon in it; put the library elsewhere", path.display());
    }
    Ok(path)
}

/// The value of LD_PRELOAD with the library in front of what is there already.
pub fn preload(library: &Path, old: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    for other in old.unwrap_or_default().as_bytes().split(|b| b" :\t\n".contains(b)) {
        // Another copy would switch the same connections.
        let is_ours = Path::new(OsStr::from_bytes(other)).file_name().is_some_and(|n| n.as_bytes().starts_with(b"libsmcr"));
        if !other.is_empty() && !is_ours {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let lib = Path::new("/l/libsmcr.so");
        let with = |old: &str| preload(lib, Some(OsStr::new(old)));
        assert_eq!(preload(lib, None), "/l/libsmcr.so");
        assert_eq!(with("a.so b.so"), "/l/libsmcr.so:a.so:b.so");
        assert_eq!(with("a.so:/l/libsmcr.so"), "/l/libsmcr.so:a.so");
        assert_eq!(with("/old/libsmcr.so:a.so"), "/l/libsmcr.so:a.so");
        assert!(usable("/a b/libsmcr.so".into()).is_err());
    }
}
