//! Where pages, configuration files and state are. Used by whatever opens one of them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use nix::unistd::{Uid, User, geteuid};
use smcr_proto::control;

use crate::cli;
use crate::fail::usage;

/// Whose settings are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    Host,
    User,
}

impl Owner {
    pub fn word(self) -> &'static str {
        match self {
            Owner::Host => "host",
            Owner::User => "user",
        }
    }

    /// What the options say; else the host for root and the user for everybody else.
    pub fn chosen(whose: cli::Whose) -> anyhow::Result<Owner> {
        let root = geteuid().is_root();
        match (whose.host, whose.user) {
            (true, _) if !root => Err(usage("only root may change the host's settings; leave out --host to change your own")),
            (true, _) => Ok(Owner::Host),
            (_, true) => Ok(Owner::User),
            _ if root => Ok(Owner::Host),
            _ => Ok(Owner::User),
        }
    }

    /// The uid that must own the files.
    pub fn uid(self) -> u32 {
        match self {
            Owner::Host => 0,
            Owner::User => geteuid().as_raw(),
        }
    }
}

/// The places of this call.
#[derive(Clone, Default)]
pub struct Places {
    root: Option<PathBuf>,
}

impl Places {
    pub fn new(root: Option<PathBuf>) -> Places {
        Places { root }
    }

    /// Whether `--root` was given.
    pub fn is_elsewhere(&self) -> bool {
        self.root.is_some()
    }

    /// A path of the host, below `--root` if that was given.
    pub fn of_host(&self, path: &str) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.trim_start_matches('/')),
            None => PathBuf::from(path),
        }
    }

    /// The control page.
    pub fn control(&self, owner: Owner) -> anyhow::Result<PathBuf> {
        match owner {
            Owner::Host => Ok(self.of_host(control::HOST_PATH)),
            Owner::User => match variable("XDG_RUNTIME_DIR") {
                Some(dir) => Ok(dir.join(control::USER_RUNTIME_PATH)),
                None => Ok(home("XDG_RUNTIME_DIR")?.join(control::USER_HOME_PATH)),
            },
        }
    }

    /// The configuration file.
    pub fn config(&self, owner: Owner) -> anyhow::Result<PathBuf> {
        match owner {
            Owner::Host => Ok(self.of_host("/etc/smcr/smcr.toml")),
            Owner::User => match own_variable("XDG_CONFIG_HOME") {
                Some(dir) => Ok(dir.join("smcr/smcr.toml")),
                None => Ok(home("XDG_CONFIG_HOME")?.join(".config/smcr/smcr.toml")),
            },
        }
    }

    /// The directory for what smcrctl remembers for this user.
    pub fn state(&self) -> anyhow::Result<PathBuf> {
        match own_variable("XDG_STATE_HOME") {
            Some(dir) => Ok(dir.join("smcr")),
            None => Ok(home("XDG_STATE_HOME")?.join(".local/state/smcr")),
        }
    }
}

/// The XDG_RUNTIME_DIR of root that is another user's (`su`, `sudo -E`). The library takes no page of the other user from
/// there, and one of root's would be in that user's way.
pub fn anothers_runtime() -> Option<PathBuf> {
    variable("XDG_RUNTIME_DIR").filter(|dir| geteuid().is_root() && !is_roots(dir))
}

/// The home directory, in which to look for what `instead` does not name.
fn home(instead: &str) -> anyhow::Result<PathBuf> {
    match own_variable("HOME") {
        Some(home) => Ok(home),
        // Root with a user's HOME (sudo -E): what root writes there follows that user's links.
        None if variable("HOME").is_some()
            && let Ok(Some(root)) = User::from_uid(Uid::from_raw(0)) =>
        {
            Ok(root.dir)
        }
        None => bail!("neither {instead} nor HOME is set to an absolute path; set HOME"),
    }
}

/// A variable that holds an absolute path, as the base directory specification asks.
fn variable(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(name)?);
    Path::is_absolute(&path).then_some(path)
}

/// The same, where nobody else can put links in the way: for root, a place that is root's.
fn own_variable(name: &str) -> Option<PathBuf> {
    variable(name).filter(|path| !geteuid().is_root() || is_roots(path))
}

/// Whether what is there of a path belongs to root, from the root directory on.
fn is_roots(path: &Path) -> bool {
    // In a user namespace the real root, who has the root directory, has another number.
    let top = fs::metadata("/").map_or(0, |meta| meta.uid());
    let is_roots = |meta: fs::Metadata| [0, top].contains(&meta.uid());
    path.ancestors().all(|part| {
        // Both the link and what it leads to; what is not there yet can be made by the owner of what it is in.
        fs::symlink_metadata(part).map_or(true, is_roots) && fs::metadata(part).map_or(true, is_roots)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn a_place_of_another_user_is_not_roots() {
        if !geteuid().is_root() {
            return; // only root can make one
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("user/mine")).unwrap();
        fs::create_dir(at("own")).unwrap();
        chown(at("user"), Some(65534), None).unwrap();
        symlink(at("own"), at("user/link")).unwrap();
        symlink(at("user"), at("own/link")).unwrap();
        for yes in ["own", "own/new/newer", "none"] {
            assert!(is_roots(&at(yes)), "{yes}");
        }
        for no in ["user", "user/mine", "user/new", "user/link", "own/link", "own/link/mine"] {
            assert!(!is_roots(&at(no)), "{no}");
        }
    }
}
