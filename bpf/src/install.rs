//! Load, attach, pin; and the way back.
//!
//! A set of pins is a directory with one link per program and two maps. It is complete or, for whoever
//! takes the lock, absent. sockops is attached first and detached last: a socket can be marked only
//! while the program that acts on marks is there.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use aya::maps::{Array, Map, MapData, MapError};
use aya::programs::{CgroupSockopt, ProgramError, SockOps};
use aya::{Ebpf, EbpfError, EbpfLoader};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::abi;
use crate::cgroup;
use crate::error::Error;
use crate::link::{self, Hook};

const OBJECT: &[u8] = aya::include_bytes_aligned!("../smcr.bpf.o");
const BPF_FS: &str = "/sys/fs/bpf";

/// Programs, and the names of their links, in the order in which they are attached.
const LINKS: [(&str, Hook); 3] = [("smcr_sockops", Hook::SockOps), ("smcr_getsockopt", Hook::GetSockOpt), ("smcr_setsockopt", Hook::SetSockOpt)];
const COUNTS: &str = "counts";
const ABOUT: &str = "about";
const ABOUT_FINGERPRINT: u32 = 0;
const ABOUT_CGROUP: u32 = 1;

/// A place for the pinned programs; the default is the one that `smcrctl` uses.
#[derive(Clone, Debug)]
pub struct Pins(PathBuf);

impl Default for Pins {
    fn default() -> Self {
        Pins(Path::new(BPF_FS).join("smcr"))
    }
}

/// What [`Pins::enable`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enabled {
    /// They were not there.
    Now,
    /// They were there already, the same ones for the same cgroup.
    Already,
    /// Others were there, or for another cgroup. Listeners that were marked then are not any more.
    Replaced,
}

/// Is it installed?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No.
    Absent,
    /// Some pins are missing: enable again.
    Partial,
    /// Yes, but programs of another version of this library.
    Outdated,
    /// Yes.
    Enabled,
    /// Yes; which programs they are cannot be seen without privilege.
    Unreadable,
}

/// What [`Pins::status`] found.
#[derive(Clone, Debug)]
pub struct Status {
    /// What the pins say.
    pub state: State,
    /// The cgroup they are for, if it still exists and may be seen.
    pub cgroup: Option<PathBuf>,
    /// Counters since they were installed.
    pub counters: Option<Counters>,
    /// The version of [`abi`] that a socket of this very process meets, whoever installed it.
    pub here: Option<u16>,
}

/// How often what happened; the order is that of `enum count` in `smcr.bpf.c`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Marked connect().
    pub connects: u64,
    /// Marked listen().
    pub listens: u64,
    /// Options written on SYNs, retransmissions included.
    pub syns: u64,
    /// Options written on SYN-ACKs.
    pub synacks: u64,
    /// Connections that we made and the peer answered.
    pub active: u64,
    /// Connections accepted from a peer with the option.
    pub passive: u64,
    /// Not answered, because a SYN cookie was sent.
    pub cookies: u64,
    /// Not answered, because of Fast Open, MD5 or AO in the SYN.
    pub refused: u64,
    /// No room in a header.
    pub space: u64,
    /// Our own option came back to us.
    pub echoes: u64,
    /// Left out, from the third SYN of a connection on.
    pub retries: u64,
}

/// What goes into the option; other than the default only where tests play another implementation.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub option_length: u8,
    pub role_syn: u8,
    pub role_synack: u8,
    pub version: u8,
}

impl Default for Shape {
    fn default() -> Self {
        Shape { option_length: 8, role_syn: 0x51, role_synack: 0xae, version: 1 }
    }
}

impl Pins {
    /// Pins at another directory, which enable() makes; its parent has to be on a BPF file system.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Pins(directory.into())
    }

    /// See [`crate::enable`].
    pub fn enable(&self, cgroup: &Path) -> Result<Enabled, Error> {
        self.enable_shaped(cgroup, Shape::default())
    }

    #[doc(hidden)]
    pub fn enable_shaped(&self, cgroup: &Path, shape: Shape) -> Result<Enabled, Error> {
        let directory = File::open(cgroup).map_err(Error::io("open", cgroup))?;
        if !cgroup::is_cgroup2(cgroup) {
            return Err(Error::NotCgroup2(cgroup.into()));
        }
        let id = cgroup::id(cgroup).map_err(Error::io("stat", cgroup))?;
        let _lock = self.lock()?;
        let before = self.state();
        if before == State::Enabled && self.about(ABOUT_CGROUP) == Some(id) {
            return Ok(Enabled::Already);
        }
        let mut programs = load(shape)?;
        self.remove()?;
        self.install(&mut programs, cgroup, &directory, id).inspect_err(|_| {
            // Half a set is worse than none. That it could not be made is what is reported.
            let _ = self.remove();
        })?;
        Ok(if before == State::Absent { Enabled::Now } else { Enabled::Replaced })
    }

    /// See [`crate::disable`].
    pub fn disable(&self) -> Result<bool, Error> {
        if !self.0.exists() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        self.remove()
    }

    /// See [`crate::status`].
    pub fn status(&self) -> Status {
        Status { state: self.state(), cgroup: self.about(ABOUT_CGROUP).and_then(cgroup::path_of), counters: self.counters(), here: probe() }
    }

    fn state(&self) -> State {
        self.state_where(probe)
    }

    /// The same; `here` asks what reaches this process.
    fn state_where(&self, here: fn() -> Option<u16>) -> State {
        // systemd gives the BPF file system to root alone.
        if fs::symlink_metadata(&self.0).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return if here().is_some() { State::Unreadable } else { State::Absent };
        }
        let there = LINKS.iter().filter(|(name, _)| self.0.join(name).exists()).count();
        match (there, self.about(ABOUT_FINGERPRINT)) {
            (0, _) => State::Absent,
            (3, Some(mark)) if mark == fingerprint(OBJECT) => State::Enabled,
            (3, Some(_)) => State::Outdated,
            (3, None) => State::Unreadable,
            _ => State::Partial,
        }
    }

    /// The directory's parent, locked against other loaders until it is dropped.
    fn lock(&self) -> Result<File, Error> {
        let parent = self.0.parent().unwrap_or(Path::new("/"));
        if !is_bpf_fs(parent) {
            if parent == Path::new(BPF_FS) {
                // systemd does this at boot; without systemd it falls to whoever comes first.
                mount(Some("bpf"), parent, Some("bpf"), MsFlags::empty(), Some("mode=0755"))
                    .map_err(io::Error::from)
                    .map_err(Error::io("mount a BPF file system at", parent))?;
            } else {
                return Err(Error::NoBpfFs(parent.into()));
            }
        }
        let lock = File::open(parent).map_err(Error::io("open", parent))?;
        lock.lock().map_err(Error::io("lock", parent))?;
        Ok(lock)
    }

    fn install(&self, programs: &mut Ebpf, cgroup: &Path, directory: &File, id: u64) -> Result<(), Error> {
        fs::create_dir(&self.0).map_err(Error::io("create", &self.0))?;
        let mut about = array_of(programs.map_mut(ABOUT))?;
        about.set(ABOUT_FINGERPRINT, fingerprint(OBJECT), 0).map_err(refused)?;
        about.set(ABOUT_CGROUP, id, 0).map_err(refused)?;
        for name in [COUNTS, ABOUT] {
            let map = programs.map(name).ok_or_else(|| lacking(name))?;
            let path = self.0.join(name);
            map.pin(&path).map_err(|error| Error::Load(format!("pin {name}: {error}")))?;
        }
        for (name, hook) in LINKS {
            let link = attach(programs, name, hook, directory, cgroup)?;
            let path = self.0.join(name);
            link::pin(link, &path).map_err(Error::io("pin", path))?;
        }
        Ok(())
    }

    fn remove(&self) -> Result<bool, Error> {
        let links = LINKS.iter().rev().map(|(name, _)| *name);
        for name in links.clone() {
            // One that is not there, or is no link, has nothing to end.
            let _ = link::detach(&self.0.join(name));
        }
        for name in links.chain([COUNTS, ABOUT]) {
            let path = self.0.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", path)(error));
                }
                _ => {}
            }
        }
        match fs::remove_dir(&self.0) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io("remove", &self.0)(error)),
        }
    }

    fn pinned(&self, name: &str) -> Option<Array<MapData, u64>> {
        Map::from_map_data(MapData::from_pin(self.0.join(name)).ok()?).ok()?.try_into().ok()
    }

    fn about(&self, index: u32) -> Option<u64> {
        self.pinned(ABOUT)?.get(&index, 0).ok()
    }

    fn counters(&self) -> Option<Counters> {
        let counts = self.pinned(COUNTS)?;
        let mut read = 0..;
        let mut next = || counts.get(&read.next()?, 0).ok();
        Some(Counters {
            connects: next()?,
            listens: next()?,
            syns: next()?,
            synacks: next()?,
            active: next()?,
            passive: next()?,
            cookies: next()?,
            refused: next()?,
            space: next()?,
            echoes: next()?,
            retries: next()?,
        })
    }
}

fn load(shape: Shape) -> Result<Ebpf, Error> {
    EbpfLoader::new()
        .override_global("option_length", &shape.option_length, true)
        .override_global("role_syn", &shape.role_syn, true)
        .override_global("role_synack", &shape.role_synack, true)
        .override_global("version", &shape.version, true)
        .load(OBJECT)
        .map_err(|error| match &error {
            EbpfError::MapError(MapError::CreateError { io_error, .. }) if denied(io_error) => Error::Privilege,
            _ => Error::Load(error.to_string()),
        })
}

/// Loads the program into the kernel and links it to the cgroup.
fn attach(programs: &mut Ebpf, name: &str, hook: Hook, directory: &File, cgroup: &Path) -> Result<OwnedFd, Error> {
    let program = programs.program_mut(name).ok_or_else(|| lacking(name))?;
    match hook {
        Hook::SockOps => <&mut SockOps>::try_from(&mut *program).and_then(SockOps::load),
        _ => <&mut CgroupSockopt>::try_from(&mut *program).and_then(CgroupSockopt::load),
    }
    .map_err(|error| match &error {
        ProgramError::LoadError { io_error, .. } if denied(io_error) => Error::Privilege,
        _ => Error::Load(error.to_string()),
    })?;
    let program = program.fd().map_err(|error| Error::Load(error.to_string()))?;
    link::create(program.as_fd(), directory.as_fd(), hook).map_err(|error| {
        // The program is in the kernel, so this is not a lack of privilege: the cgroup refuses.
        if denied(&error) { Error::Occupied(cgroup.into()) } else { Error::io("attach to", cgroup)(error) }
    })
}

fn array_of(map: Option<&mut Map>) -> Result<Array<&mut MapData, u64>, Error> {
    map.ok_or_else(|| lacking(ABOUT))?.try_into().map_err(refused)
}

fn refused(error: MapError) -> Error {
    Error::Load(error.to_string())
}

fn lacking(name: &str) -> Error {
    Error::Load(format!("the object lacks {name}"))
}

/// EPERM alone: EACCES is the verifier's word.
fn denied(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

fn is_bpf_fs(path: &Path) -> bool {
    statfs(path).is_ok_and(|fs| fs.filesystem_type() == BPF_FS_MAGIC)
}

/// FNV-1a: tells one build of the programs from another, no more.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Asks a socket of our own whether the options are there.
fn probe() -> Option<u16> {
    let mut answer = 0u32;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: a socket made here and closed here; the kernel writes `length` bytes into `answer`.
    let result = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let answer = (&raw mut answer).cast();
        let result = libc::getsockopt(fd, abi::LEVEL, abi::MARK, answer, &mut length);
        libc::close(fd);
        result
    };
    (result == 0).then_some((answer >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn pins_behind_a_closed_door_are_known_by_what_they_do() {
        // SAFETY: it asks and changes nothing.
        if unsafe { libc::geteuid() } != 0 {
            return; // only root can be shut out by what it may set
        }
        let dir = std::env::temp_dir().join(format!("smcr-bpf-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        let pins = Pins::at(dir.join("smcr"));
        let states = std::thread::spawn(move || {
            // SAFETY: the system call alone: of this thread, which ends, and not of the others.
            unsafe { libc::syscall(libc::SYS_setresuid, -1, 65534, -1) };
            [pins.state_where(|| Some(abi::ABI)), pins.state_where(|| None)]
        });
        let states = states.join().unwrap();
        fs::remove_dir(&dir).unwrap();
        assert_eq!(states, [State::Unreadable, State::Absent]);
    }
}
