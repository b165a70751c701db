//! The control page as a file: found, made, read, and changed in place under a lock.
//!
//! The file is kept read-only even for its owner, so that no stray `>` shortens it under the
//! processes that map it. Used by the commands that show or change settings.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg, OFlag};
use smcr_proto::control::{self, LEN, Page, PageError, ReadError};

use crate::mapping::Mapping;
use crate::paths::{self, Owner};

/// A page file of an owner.
pub struct Store {
    path: PathBuf,
    owner: Owner,
}

/// Keeps other writers away while it lives.
pub struct Lock(#[allow(dead_code, reason = "held, not read")] Flock<File>);

impl Store {
    pub fn new(path: PathBuf, owner: Owner) -> Store {
        Store { path, owner }
    }

    /// The page, or none if there is no file.
    pub fn read(&self) -> anyhow::Result<Option<Page>> {
        match self.look()? {
            None => Ok(None),
            Some(Ok(page)) => Ok(Some(page)),
            Some(Err(error)) => Err(self.broken(error)),
        }
    }

    /// Keeps other writers away. Makes the directory if it is not there.
    pub fn lock(&self) -> anyhow::Result<Lock> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        self.make_dir(dir).and_then(|()| lock_file(&dir.join("control.lock"))).map_err(|e| self.refused(e, "change"))
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        let is_new = !dir.exists();
        let mode = match self.owner {
            Owner::Host => 0o755,
            Owner::User => 0o700,
        };
        DirBuilder::new().recursive(true).mode(mode).create(dir)?;
        if is_new && self.owner == Owner::Host {
            // Whatever root's umask says: the processes of all users look for the page in here.
            std::fs::set_permissions(dir, Permissions::from_mode(mode))?;
        }
        Ok(())
    }

    /// Changes the page, or makes it from `first` and then changes it; if `change` fails, nothing
    /// is changed.
    pub fn update<T>(
        &self,
        _lock: &Lock,
        first: impl FnOnce() -> anyhow::Result<Page>,
        change: impl FnOnce(&mut Page) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let (mut page, exists) = match self.look()? {
            None => (first()?, false),
            Some(Ok(page)) => (page, true),
            // We hold the lock, so whoever left the page like this died at it.
            Some(Err(ReadError::Busy)) => (first()?, true),
            Some(Err(error)) => return Err(self.broken(error)),
        };
        let result = change(&mut page)?;
        let mut image = [0; LEN];
        control::emit(&page, &mut image);
        let written = if exists { self.write_in_place(&image) } else { self.create(&image) };
        written.map_err(|e| self.refused(e, "write"))?;
        Ok(result)
    }

    fn look(&self) -> anyhow::Result<Option<Result<Page, ReadError>>> {
        let file = match self.open(false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| self.refused(e, "read"))?,
        };
        let meta = file.metadata().map_err(|e| self.refused(e, "read"))?;
        if !meta.is_file() {
            bail!("{} is not a file; remove it", self.path.display());
        }
        if meta.uid() != self.owner.uid() {
            let mend = match self.owner {
                Owner::User if paths::anothers_runtime().is_some() => "unset XDG_RUNTIME_DIR, which is another user's",
                _ => "remove it",
            };
            bail!(
                "{} belongs to uid {} and not to uid {}; the library does not read it either; {mend}",
                self.path.display(),
                meta.uid(),
                self.owner.uid()
            );
        }
        if meta.len() < LEN as u64 {
            let short = ReadError::Page(PageError::TooShort(meta.len() as usize));
            return Ok(Some(Err(short)));
        }
        let mapping = Mapping::new(&file, false).map_err(|e| self.refused(e, "read"))?;
        let read = control::read(mapping.words()).map(|(_, page)| page);
        if read == Err(ReadError::Busy) {
            // A change that was not finished may be repaired only if this is a page of ours.
            let mut bytes = Vec::new();
            (&file).take(LEN as u64).read_to_end(&mut bytes).map_err(|e| self.refused(e, "read"))?;
            if let Err(error @ (PageError::NotAPage | PageError::Newer(_))) = control::parse(&bytes) {
                return Ok(Some(Err(ReadError::Page(error))));
            }
        }
        Ok(Some(read))
    }

    fn create(&self, image: &[u8; LEN]) -> io::Result<()> {
        let new = self.path.with_extension("new");
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(image)?;
        file.set_permissions(Permissions::from_mode(self.mode()))?;
        std::fs::rename(&new, &self.path)
    }

    fn write_in_place(&self, image: &[u8; LEN]) -> io::Result<()> {
        // By its descriptor: under its name there may be a link by now, if the directory is another user's.
        let page = self.open(false)?;
        page.set_permissions(Permissions::from_mode(self.mode() | 0o200))?;
        let writable = self.open(true);
        page.set_permissions(Permissions::from_mode(self.mode()))?;
        let writable = writable?;
        let (looked, opened) = (page.metadata()?, writable.metadata()?);
        if (looked.dev(), looked.ino()) != (opened.dev(), opened.ino()) {
            return Err(io::Error::other("it was replaced meanwhile"));
        }
        let mapping = Mapping::new(&writable, true)?;
        control::store(mapping.words(), image);
        Ok(())
    }

    fn open(&self, writable: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(writable).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
        options.open(&self.path)
    }

    fn mode(&self) -> u32 {
        match self.owner {
            Owner::Host => 0o444,
            Owner::User => 0o400,
        }
    }

    fn refused(&self, error: io::Error, what: &str) -> anyhow::Error {
        anyhow::Error::new(error).context(format!("cannot {what} the control page {}", self.path.display()))
    }

    fn broken(&self, error: ReadError) -> anyhow::Error {
        let mend = match error {
            ReadError::Page(PageError::Newer(_)) => "",
            ReadError::Busy => "; a change was not finished, smcrctl config apply repairs it",
            ReadError::Page(_) => "; remove it and run smcrctl config apply",
        };
        anyhow::anyhow!("{}: {error}{mend}", self.path.display())
    }
}

/// Keeps away who would change this file of the user's own at the same time.
pub fn lock_beside(path: &Path) -> anyhow::Result<Lock> {
    let lock = path.with_extension("lock");
    let dir = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(dir).and_then(|()| lock_file(&lock)).with_context(|| format!("cannot lock {}", lock.display()))
}

fn lock_file(path: &Path) -> io::Result<Lock> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path)?;
    match Flock::lock(file, FlockArg::LockExclusive) {
        Ok(lock) => Ok(Lock(lock)),
        Err((_, error)) => Err(error.into()),
    }
}

/// Reads a file that smcrctl alone writes. It is no link.
pub fn read_state(path: &Path) -> io::Result<String> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    io::read_to_string(OpenOptions::new().read(true).custom_flags(flags).open(path)?)
}

/// Replaces a configuration file, which may be a link to where it is kept.
pub fn replace_config(path: &Path, text: &str) -> anyhow::Result<()> {
    replace_file(&std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()), text)
}

/// Writes a file so that a reader sees either the old or the new one, also after a crash. A link is replaced as
/// such, and not what it leads to.
pub fn replace_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let write = || -> io::Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        let old = std::fs::symlink_metadata(path).ok().filter(|m| m.is_file());
        let _ = std::fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(if old.is_some() { 0o600 } else { 0o644 }).open(&new)?;
        if let Some(old) = old {
            // Whose it is and who may read it stays, whatever the umask says; a group that is not ours is nobody's.
            let is_same = fchown(&file, Some(old.uid()), Some(old.gid())).is_ok();
            let kept = if is_same { 0o7777 } else { 0o7707 };
            file.set_permissions(Permissions::from_mode(old.mode() & kept))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
