//! What the constructor saw of the environment: the layer that it makes, and where the user's page
//! would be. Copied, since programs write over their environment block.

use smcr_proto::control::{HOST_PATH, Layer, USER_HOME_PATH, USER_RUNTIME_PATH};
use std::ffi::CStr;
use std::sync::OnceLock;

/// Longest path of a user's page.
const LONGEST: usize = 512;

static ENVIRONMENT: OnceLock<Layer> = OnceLock::new();
static USER: OnceLock<[u8; LONGEST]> = OnceLock::new();

/// Keeps what the environment sets.
pub fn remember_environment(layer: Layer) {
    let _ = ENVIRONMENT.set(layer);
}

/// Keeps where the user's page is: below XDG_RUNTIME_DIR or, without that, below HOME. Only absolute
/// paths count, as for smcrctl.
pub fn remember_paths(runtime_dir: Option<&CStr>, home: Option<&CStr>) {
    let absolute = |dir: &&CStr| dir.to_bytes().starts_with(b"/");
    let below = runtime_dir.filter(absolute).map(|dir| (dir, USER_RUNTIME_PATH)).or_else(|| home.filter(absolute).map(|dir| (dir, USER_HOME_PATH)));
    if let Some((dir, file)) = below
        && let Some(path) = join(dir.to_bytes(), file.as_bytes())
    {
        let _ = USER.set(path);
    }
}

/// What the environment sets, if anything.
pub fn environment() -> Option<&'static Layer> {
    ENVIRONMENT.get()
}

/// Where the user's page is.
pub fn user_path() -> Option<&'static CStr> {
    CStr::from_bytes_until_nul(USER.get()?).ok()
}

/// Where the host's page is. Nothing is initialised for it: a forked child would wait for a thread that it does not have.
pub fn host_path() -> Option<&'static CStr> {
    static PATH: [u8; LONGEST] = terminated(HOST_PATH.as_bytes());
    CStr::from_bytes_until_nul(&PATH).ok()
}

const fn terminated(path: &[u8]) -> [u8; LONGEST] {
    assert!(path.len() < LONGEST);
    let mut out = [0; LONGEST];
    let mut i = 0;
    while i < path.len() {
        out[i] = path[i];
        i += 1;
    }
    out
}

/// `dir`/`file`, NUL-terminated; None if it is too long.
fn join(dir: &[u8], file: &[u8]) -> Option<[u8; LONGEST]> {
    let mut path = [0; LONGEST];
    let end = dir.len() + 1 + file.len();
    path.get_mut(..dir.len())?.copy_from_slice(dir);
    *path.get_mut(dir.len())? = b'/';
    path.get_mut(dir.len() + 1..end)?.copy_from_slice(file);
    (end < LONGEST).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_or_refused() {
        let path = join(b"/run/user/7", b"smcr/control").unwrap();
        assert_eq!(CStr::from_bytes_until_nul(&path), Ok(c"/run/user/7/smcr/control"));
        assert!(join(&[b'a'; LONGEST], b"b").is_none());
        assert!(join(&[b'a'; LONGEST - 2], b"b").is_none(), "no room for the end");
        assert!(join(&[b'a'; LONGEST - 3], b"b").is_some());
        assert_eq!(host_path().and_then(|p| p.to_str().ok()), Some(HOST_PATH));
    }
}
