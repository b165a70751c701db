//! Owns: starting programs with or without the library, and waiting for them. No wait is without a
//! deadline; when it passes, what hangs is dumped, and the test fails.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use tempfile::TempDir;

use crate::net::Net;
use crate::{dump, library};

/// How long a program may take that should end by itself.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Whether a program runs with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    Native,
    /// Connections are moved to memory early, so that short tests see it.
    Library,
    /// As a user finds it: nothing is set that says when a connection is worth it, or that it has to be (`SMCR_STRICT`, tests/suites.sh).
    Defaults,
}

use Load::{Defaults, Library, Native};

impl Load {
    pub const BOTH: [Load; 2] = [Native, Library];

    /// Sets the environment of `command` accordingly; other variables of the library are inherited.
    pub fn apply(self, command: &mut Command) {
        match self {
            Native => command.env_remove("LD_PRELOAD"),
            Library => command.env("LD_PRELOAD", library::path()).env("SMCR_SWITCH_OPS", "1").env("SMCR_SWITCH_BYTES", "1"),
            Defaults => {
                command.env_remove("SMCR_SWITCH_OPS").env_remove("SMCR_SWITCH_BYTES").env_remove("SMCR_STRICT");
                command.env("LD_PRELOAD", library::path())
            }
        };
    }
}

/// Whether connections are made to move between TCP and memory at random bytes (`SMCR_FLIP`); how
/// much stays off TCP is then not what a test can ask.
pub fn flipping() -> bool {
    std::env::var_os("SMCR_FLIP").is_some()
}

/// The bytes between two flips, on average; None where connections stay where they are.
pub fn flip_mean() -> Option<u64> {
    let text = std::env::var("SMCR_FLIP").ok()?;
    text.split(',').next()?.parse().ok().filter(|mean| *mean > 0)
}

/// A program to be started in a namespace.
pub struct Program<'a> {
    net: &'a Net,
    command: Command,
    name: String,
}

impl<'a> Program<'a> {
    pub fn new(net: &'a Net, load: Load, program: impl AsRef<OsStr>) -> Program<'a> {
        let mut command = Command::new(program.as_ref());
        command.stdin(Stdio::null());
        load.apply(&mut command);
        net.enter(&mut command);
        let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into();
        Program { net, command, name }
    }

    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub fn stdin(mut self, from: impl Into<Stdio>) -> Self {
        self.command.stdin(from);
        self
    }

    /// Gives it `fd` under this number.
    pub fn fd(mut self, fd: OwnedFd, number: i32) -> Self {
        // SAFETY: system calls alone are made in the child; `fd` is moved into the closure and so lives as
        // long as the command.
        unsafe {
            self.command.pre_exec(move || {
                // dup2 of a number onto itself would leave it close-on-exec.
                let done = match fd.as_raw_fd() {
                    own if own == number => libc::fcntl(own, libc::F_SETFD, 0),
                    own => libc::dup2(own, number),
                };
                if done == -1 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        self
    }

    /// Runs a closure in the child before exec: system calls only.
    pub fn before_exec(mut self, f: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        // SAFETY: the callers make system calls only (setrlimit, close).
        unsafe { self.command.pre_exec(f) };
        self
    }

    pub fn start(mut self) -> Result<Running<'a>> {
        let out = TempDir::new()?;
        self.command.stdout(File::create(out.path().join("out"))?);
        self.command.stderr(File::create(out.path().join("err"))?);
        // Under nohup a program would ignore what shall end it.
        // SAFETY: one system call.
        unsafe {
            self.command.pre_exec(|| match libc::signal(libc::SIGHUP, libc::SIG_DFL) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let child = self.command.spawn().with_context(|| format!("start {}", self.name))?;
        Ok(Running { net: self.net, child, out, name: self.name, ended: None })
    }

    /// Starts it and waits for its end.
    pub fn run(self) -> Result<Ended> {
        self.start()?.wait(DEADLINE)
    }

    /// The same; it must end with 0. Returns what it wrote to standard output.
    pub fn run_ok(self) -> Result<String> {
        let ended = self.run()?;
        ensure!(ended.status.success(), "{ended}");
        Ok(ended.out)
    }
}

/// A started program. Dropping it kills it.
pub struct Running<'a> {
    net: &'a Net,
    child: Child,
    out: TempDir,
    name: String,
    ended: Option<ExitStatus>,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    pub name: String,
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}\n{}\n{}", self.name, self.status, self.out, self.err)
    }
}

impl Ended {
    /// "exit 0", "signal 9".
    pub fn how(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "?".into(),
        }
    }
}

impl Running<'_> {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Whether it has ended.
    pub fn gone(&mut self) -> Result<bool> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended.is_some())
    }

    /// Whether it lives or how it ended, which stays to be waited for, and what it has said on standard error.
    pub fn state(&self) -> String {
        let pid = nix::unistd::Pid::from_raw(self.pid());
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        format!("{:?}, {}", self.ended.map_or_else(|| format!("{:?}", waitid(Id::Pid(pid), flags)), |e| e.to_string()), brief(self.text("err")))
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) -> Result<()> {
        Ok(nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal)?)
    }

    /// Where its standard output goes.
    pub fn out_file(&self) -> PathBuf {
        self.out.path().join("out")
    }

    fn text(&self, name: &str) -> String {
        let bytes = fs::read(self.out.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What it wrote so far: standard output and standard error.
    pub fn so_far(&self) -> (String, String) {
        (self.text("out"), self.text("err"))
    }

    /// Waits for its end; its files stay.
    pub fn await_end(&mut self, deadline: Duration) -> Result<()> {
        let end = Instant::now() + deadline;
        let mut pause = Duration::from_micros(500);
        while !self.gone()? {
            if Instant::now() > end {
                let (out, err) = (brief(self.text("out")), brief(self.text("err")));
                let hung = dump::all(&self.net.pids());
                bail!("{} did not end\n--- out\n{out}\n--- err\n{err}\n{hung}", self.name);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits for its end.
    pub fn wait(mut self, deadline: Duration) -> Result<Ended> {
        self.await_end(deadline)?;
        Ok(Ended { name: self.name.clone(), status: self.ended.context("ended")?, out: self.text("out"), err: self.text("err") })
    }

    /// Asks it to end (SIGTERM) and waits.
    pub fn stop(self) -> Result<Ended> {
        self.signal(nix::sys::signal::Signal::SIGTERM)?;
        self.wait(Duration::from_secs(20))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Not more than a screen of it: some programs give out data.
fn brief(text: String) -> String {
    if text.len() < 5000 { text } else { format!("({} bytes)", text.len()) }
}

/// Waits until `ready` says so.
pub fn eventually(what: &str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + DEADLINE;
    while Instant::now() < end {
        if ready()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("{what}: not within the deadline")
}

/// The full path of a program, or an error that says what to install.
pub fn which(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|dir| dir.join(program))
        .find(|p| p.is_file())
        .with_context(|| format!("{program} is not installed: make deps"))
}
