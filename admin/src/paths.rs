//! Where pages, configuration files and state are. Used by whatever opens one of them.

use std::path::{Path, PathBuf};

use anyhow::bail;
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
    pub fn chosen(scope: cli::Scope) -> anyhow::Result<Owner> {
        let root = nix::unistd::geteuid().is_root();
        match (scope.host, scope.user) {
            (true, _) if !root => Err(usage(
                "only root may change the host's settings; leave out --host to change your own",
            )),
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
            Owner::User => nix::unistd::geteuid().as_raw(),
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
                None => Ok(home()?.join(control::USER_HOME_PATH)),
            },
        }
    }

    /// The configuration file.
    pub fn config(&self, owner: Owner) -> anyhow::Result<PathBuf> {
        match owner {
            Owner::Host => Ok(self.of_host("/etc/smcr/smcr.toml")),
            Owner::User => match variable("XDG_CONFIG_HOME") {
                Some(dir) => Ok(dir.join("smcr/smcr.toml")),
                None => Ok(home()?.join(".config/smcr/smcr.toml")),
            },
        }
    }

    /// The directory for what smcrctl remembers for this user.
    pub fn state(&self) -> anyhow::Result<PathBuf> {
        match variable("XDG_STATE_HOME") {
            Some(dir) => Ok(dir.join("smcr")),
            None => Ok(home()?.join(".local/state/smcr")),
        }
    }
}

fn home() -> anyhow::Result<PathBuf> {
    match variable("HOME") {
        Some(home) => Ok(home),
        None => bail!("neither XDG_RUNTIME_DIR nor HOME is set to an absolute path; set HOME"),
    }
}

/// A variable that holds an absolute path, as the base directory specification asks.
fn variable(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(name)?);
    Path::is_absolute(&path).then_some(path)
}
