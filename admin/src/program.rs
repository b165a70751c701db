//! Can a program have the library? Looks at its file: kind, loader, rights, and what it calls.
//! Used by run, check --program, explain and enable-unit.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, Object, ObjectSymbol, ReadCache, elf};

/// How many interpreters of interpreters the kernel follows.
const MOST_INTERPRETERS: usize = 4;

/// What was found out.
pub struct Report {
    /// The file that the kernel will load in the end.
    pub file: PathBuf,
    /// Why the library cannot be in it or will do nothing; empty = it can.
    pub obstacles: Vec<Obstacle>,
    /// What else a user should know.
    pub remarks: Vec<String>,
}

/// Something in the way, in a sentence, and what to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub why: &'static str,
    pub mend: &'static str,
}

const BITS: Obstacle = Obstacle { why: "it is a 32-bit program, the library has 64 bits", mend: "use a 64-bit build of it" };
const MACHINE: Obstacle = Obstacle { why: "it is a program of another machine type than the library", mend: "use a build for this machine type" };
const GO: Obstacle = Obstacle {
    why: "it is a Go program, which calls the kernel directly",
    mend: "nothing: its connections stay on TCP, and so does the other end of each",
};
const STATIC: Obstacle = Obstacle { why: "it is statically linked, so nothing can be loaded into it", mend: "use a dynamically linked build of it" };
const MUSL: Obstacle = Obstacle {
    why: "it is a musl program, which cannot load a library made for glibc",
    mend: "use a build for glibc (in containers an image that is not Alpine)",
};
const SETUID: Obstacle =
    Obstacle { why: "it is setuid or setgid, and the loader ignores LD_PRELOAD then", mend: "start it as the user that it belongs to" };
const CAPABLE: Obstacle = Obstacle {
    why: "it has file capabilities, and the loader ignores LD_PRELOAD then",
    mend: "start it as root, or from a systemd unit with AmbientCapabilities= instead",
};

/// Finds a program as a shell would.
pub fn resolve(name: &Path) -> anyhow::Result<PathBuf> {
    if name.as_os_str().as_bytes().contains(&b'/') {
        if !name.exists() {
            bail!("no program {}; check the path", name.display());
        }
        return Ok(name.to_path_buf());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
    places.find(|p| is_program(p)).ok_or_else(|| anyhow::anyhow!("no program {} in PATH; check the name", name.display()))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Looks at a program; of a script, at its interpreter.
pub fn inspect(path: &Path) -> anyhow::Result<Report> {
    let mut file = path.to_path_buf();
    let mut remarks = Vec::new();
    for _ in 0..=MOST_INTERPRETERS {
        match interpreter(&file)? {
            None => return inspect_file(file, remarks),
            Some(next) => {
                remarks.push(format!("{} is a script of {}", file.display(), next.display()));
                file = next;
            }
        }
    }
    bail!("{} is a script of a script of a script; name the program", path.display())
}

/// The program that runs a script; none if the file is not a script.
fn interpreter(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let mut start = [0; 256];
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    if !file.metadata()?.is_file() {
        bail!("{} is not a file; name a program", path.display());
    }
    let got = file.read(&mut start)?;
    let Some(line) = start[..got].strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_whitespace();
    let Some(program) = words.next() else {
        bail!("{} names no interpreter behind #!", path.display());
    };
    // env looks for the program in PATH; options and assignments stand before its name.
    if Path::new(program).file_name().is_some_and(|n| n == "env") {
        let name = words.find(|w| !w.starts_with('-') && !w.contains('='));
        return name.map(|name| resolve(Path::new(name))).transpose();
    }
    Ok(Some(PathBuf::from(program)))
}

fn inspect_file(path: PathBuf, mut remarks: Vec<String>) -> anyhow::Result<Report> {
    let file = File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let cache = ReadCache::new(file);
    let mut obstacles = Vec::new();
    match FileKind::parse(&cache) {
        Ok(FileKind::Elf64) => {
            let kind = elf_kind::<elf::FileHeader64<Endianness>>(&cache);
            let kind = kind.with_context(|| format!("{} is damaged", path.display()))?;
            obstacles.extend(kind.obstacle());
            if obstacles.is_empty() {
                look_at_calls(&cache, &mut remarks);
            }
        }
        Ok(FileKind::Elf32) => obstacles.push(BITS),
        _ => bail!("{} is not an ELF program or script; name a program", path.display()),
    }
    match privilege(&path)? {
        Privilege::None => {}
        Privilege::Gained(obstacle) => obstacles.push(obstacle),
        Privilege::OfOthers => {
            remarks.push("it is setuid, setgid or has file capabilities: the library is left out when another user starts it".into())
        }
    }
    Ok(Report { file: path, obstacles, remarks })
}

/// What the headers of an ELF file say.
struct ElfKind {
    machine: u16,
    loader: Option<String>,
    go: bool,
}

fn elf_kind<H: FileHeader<Endian = Endianness>>(data: &ReadCache<File>) -> object::Result<ElfKind> {
    let header = H::parse(data)?;
    let endian = header.endian()?;
    let mut loader = None;
    for segment in header.program_headers(endian, data)? {
        if let Some(name) = segment.interpreter(endian, data)? {
            loader = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    let sections = header.sections(endian, data)?;
    let has = |name: &[u8]| sections.section_by_name(endian, name).is_some();
    Ok(ElfKind { machine: header.e_machine(endian), loader, go: has(b".go.buildinfo") || has(b".note.go.buildid") })
}

impl ElfKind {
    fn obstacle(&self) -> Option<Obstacle> {
        let own = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
        if self.machine != own {
            return Some(MACHINE);
        }
        if self.go {
            return Some(GO);
        }
        match self.loader.as_deref() {
            None => Some(STATIC),
            Some(loader) if loader.contains("ld-musl") => Some(MUSL),
            Some(_) => None,
        }
    }
}

fn look_at_calls(data: &ReadCache<File>, remarks: &mut Vec<String>) {
    let Ok(file) = object::File::parse(data) else {
        return;
    };
    let symbols = file.dynamic_symbols().filter(|s| s.is_undefined());
    let names: Vec<_> = symbols.filter_map(|s| s.name().ok().map(str::to_string)).collect();
    if names.iter().any(|n| n.starts_with("io_uring_")) {
        remarks.push("it uses io_uring; connections that go through it stay on TCP".into());
    }
    if names.iter().any(|n| n == "seccomp_load") {
        remarks.push("it restricts its own system calls (seccomp); then connections stay on TCP".into());
    }
}

/// Rights that a program has by its file.
enum Privilege {
    None,
    /// We would gain rights by starting it; then the loader ignores LD_PRELOAD with a path.
    Gained(Obstacle),
    /// Others would gain rights, we have them already.
    OfOthers,
}

fn privilege(path: &Path) -> anyhow::Result<Privilege> {
    let meta = fs::metadata(path)?;
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let mode = meta.permissions().mode();
    let (setuid, setgid) = (mode & 0o4000 != 0, mode & 0o2010 == 0o2010);
    let caps = matches!(xattr::get(path, "security.capability"), Ok(Some(_)));
    Ok(if (setuid && meta.uid() != uid.as_raw()) || (setgid && meta.gid() != gid.as_raw()) {
        Privilege::Gained(SETUID)
    } else if caps && !uid.is_root() {
        Privilege::Gained(CAPABLE)
    } else if setuid || setgid || caps {
        Privilege::OfOthers
    } else {
        Privilege::None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(loader: Option<&str>, go: bool) -> Option<&'static str> {
        let machine = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
        let loader = loader.map(str::to_string);
        ElfKind { machine, loader, go }.obstacle().map(|o| o.why)
    }

    #[test]
    fn kinds_of_programs() {
        assert_eq!(kind(Some("/lib64/ld-linux-x86-64.so.2"), false), None);
        for (loader, go, word) in [(None, false, "statically"), (None, true, "Go"), (Some("/lib/ld-musl-x86_64.so.1"), false, "musl")] {
            assert!(kind(loader, go).unwrap().contains(word));
        }
    }

    #[test]
    fn own_program_and_scripts() {
        let own = std::env::current_exe().unwrap();
        assert!(inspect(&own).unwrap().obstacles.is_empty());
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("s");
        fs::write(&script, "#!/usr/bin/env -S sh -e\n").unwrap();
        let report = inspect(&script).unwrap();
        assert!(report.file.ends_with("sh"), "{}", report.file.display());
        fs::write(&script, "hello").unwrap();
        assert!(inspect(&script).is_err());
        fs::write(&script, b"\x7fELF\x02\x01\x01").unwrap();
        assert!(inspect(&script).is_err());
    }
}
