//! A directory of files for one test, and smcrctl working in it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use nix::unistd::geteuid;
use tempfile::TempDir;

pub struct Bed {
    dir: TempDir,
}

impl Bed {
    pub fn new() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        // Root's smcrctl takes no home that others can put links into, but the real one.
        let others = |part: &Path| std::fs::metadata(part).unwrap().uid() != 0;
        assert!(!geteuid().is_root() || !dir.path().ancestors().any(others), "run by root, this needs a TMPDIR of root's");
        for name in ["root", "home", "run"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Bed { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The user's control page.
    pub fn page(&self) -> PathBuf {
        self.path("run/smcr/control")
    }

    /// The user's configuration file.
    pub fn config(&self) -> PathBuf {
        self.path("home/.config/smcr/smcr.toml")
    }

    /// smcrctl with nothing in its environment but this bed.
    pub fn smcrctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("smcrctl"));
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("XDG_STATE_HOME", self.path("state"))
            .arg("--root")
            .arg(self.path("root"))
            .args(args);
        command
    }

    /// Standard output of a call that succeeds.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.smcrctl(args).assert().success().get_output().clone();
        String::from_utf8(output.stdout).unwrap()
    }

    /// The line of a call that fails with this status; there must be one line, and no output.
    pub fn fails(&self, args: &[&str], status: i32) -> String {
        let output = self.smcrctl(args).assert().code(status).get_output().clone();
        // Other tests show pages of other versions meanwhile, of which a note is made.
        let all = String::from_utf8(output.stderr).unwrap();
        let line: String = all.lines().filter(|line| !line.starts_with("note: ")).collect::<Vec<_>>().join("\n");
        assert!(output.stdout.is_empty(), "{args:?}");
        assert_eq!(line.lines().count(), 1, "{args:?}: {line}");
        assert!(line.starts_with("smcrctl: "), "{line}");
        line.trim().to_string()
    }
}

/// The words of each line.
pub fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|l| l.split_whitespace().collect()).collect()
}

pub fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}
