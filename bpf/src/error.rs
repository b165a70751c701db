//! What can go wrong, said with what mends it.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why the programs could not be installed or removed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// CAP_BPF and CAP_NET_ADMIN are missing.
    Privilege,
    /// The path is not on a cgroup2 file system.
    NotCgroup2(PathBuf),
    /// No BPF file system where the pins are to be.
    NoBpfFs(PathBuf),
    /// Another program was attached to this cgroup without leave for others.
    Occupied(PathBuf),
    /// The kernel refused a program or a map.
    Load(String),
    /// A step that touches a file failed.
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| match source.kind() {
            io::ErrorKind::PermissionDenied => Error::Privilege,
            _ => Error::Io { what, path, source },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Privilege => f.write_str("not permitted: CAP_BPF and CAP_NET_ADMIN are needed; run it as root"),
            Error::NotCgroup2(path) => {
                write!(f, "{} is not a cgroup2 directory; see `mount -t cgroup2`", path.display())
            }
            Error::NoBpfFs(path) => write!(f, "no BPF file system at {0}; `mount -t bpf bpf {0}` makes one", path.display()),
            Error::Occupied(path) => write!(f, "another program holds {} exclusively; `bpftool cgroup show` names it", path.display()),
            Error::Load(text) => write!(f, "the kernel refused the programs: {text}"),
            Error::Io { what, path, source } => write!(f, "{what} {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
