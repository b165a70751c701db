//! A steered server and client in one namespace, with a control page of their own and smcrctl.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smcr_tests::library::{self, source_dir};
use smcr_tests::net::Net;
use smcr_tests::process::{Ended, Load, Program, Running, eventually, flipping};
use smcr_tests::twice::python;
use tempfile::TempDir;

/// Ports that the server listens on.
pub const PORTS: [u16; 2] = [7000, 7001];

pub fn smcrctl() -> &'static PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| match std::env::var_os("SMCR_CTL") {
        Some(path) => path.into(),
        None => library::build("smcr-admin", "smcrctl").expect("smcrctl"),
    })
}

/// A directory for pages and files, and a namespace.
pub struct Bed {
    pub net: Net,
    dir: TempDir,
}

impl Bed {
    pub fn new() -> Result<Bed> {
        let dir = TempDir::new()?;
        // Root's smcrctl takes no home that others can put links into, but the real one.
        let others = |part: &Path| part.metadata().is_ok_and(|m| m.uid() != 0);
        let is_root = nix::unistd::geteuid().is_root();
        ensure!(!is_root || !dir.path().ancestors().any(others), "run by root, this needs a TMPDIR of root's");
        for name in ["run", "home"] {
            std::fs::create_dir(dir.path().join(name))?;
        }
        Ok(Bed { net: Net::new()?, dir })
    }

    /// The same with a page that its programs find when they start.
    pub fn enabled() -> Result<Bed> {
        let bed = Bed::new()?;
        bed.ok(&["enable", "--user"])?;
        Ok(bed)
    }

    pub fn page(&self) -> PathBuf {
        self.dir.path().join("run/smcr/control")
    }

    /// With the user's settings of this bed.
    pub fn home<'a>(&self, program: Program<'a>) -> Program<'a> {
        let at = |name: &str| self.dir.path().join(name);
        program.env("XDG_RUNTIME_DIR", at("run")).env("HOME", at("home")).env("XDG_CONFIG_HOME", at("home")).env("PYTHONDONTWRITEBYTECODE", "1")
    }

    /// smcrctl with the user's settings of this bed, to its end.
    pub fn ctl(&self, args: &[&str]) -> Result<Ended> {
        self.home(Program::new(&self.net, Load::Native, smcrctl())).args(args).run()
    }

    /// The same; it must succeed.
    pub fn ok(&self, args: &[&str]) -> Result<String> {
        let ended = self.ctl(args)?;
        ensure!(ended.status.success(), "smcrctl {args:?}: {ended}");
        Ok(ended.out)
    }

    /// A Python program of ours with the library.
    fn program<'a>(&'a self, env: &[(&str, &str)]) -> Result<Program<'a>> {
        let script = source_dir().join("py/steered.py");
        let mut program = Program::new(&self.net, Load::Library, python()?).args([script]);
        for (name, value) in env {
            program = program.env(name, value);
        }
        Ok(self.home(program))
    }

    /// The server with a child for each connection.
    pub fn forking_server(&self) -> Result<Running<'_>> {
        self.single(&["forks", &PORTS[0].to_string()])
    }

    /// The server of one connection that forks when it gets SIGUSR1.
    pub fn heir(&self) -> Result<Running<'_>> {
        self.single(&["heir", &PORTS[0].to_string()])
    }

    /// The server that sends one connection this much at once and that much after a million bytes, and reads it.
    pub fn sink(&self, first: usize, last: usize) -> Result<Running<'_>> {
        self.single(&["sink", &PORTS[0].to_string(), &first.to_string(), &last.to_string()])
    }

    /// A server of `steered.py` by its arguments.
    pub fn single(&self, args: &[&str]) -> Result<Running<'_>> {
        let server = self.program(&[])?.args(args).start()?;
        eventually("a server", || Ok(server.so_far().0.contains("ready")))?;
        Ok(server)
    }

    pub fn server(&self, env: &[(&str, &str)]) -> Result<Running<'_>> {
        let server = self.program(env)?.args(["server"]).args(PORTS.map(|p| p.to_string())).start()?;
        eventually("a server", || Ok(server.so_far().0.contains("ready")))?;
        Ok(server)
    }

    pub fn client(&self, env: &[(&str, &str)]) -> Result<Client<'_>> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(Duration::from_secs(60)))?;
        let program = self.program(env)?.args(["client"]).fd(theirs.into(), 3).start()?;
        Ok(Client { bed: self, program, lines: RefCell::new(BufReader::new(ours)) })
    }

    /// Every connection end as `smcrctl sock --json` shows it.
    pub fn socks(&self) -> Result<Vec<Value>> {
        let text = self.ok(&["sock", "--json"])?;
        let all: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
        let all = all.as_array().or(all["sockets"].as_array()).context("sock --json")?;
        let pids = self.net.pids();
        let ours = |s: &&Value| s["pid"].as_i64().is_some_and(|p| pids.contains(&(p as i32)));
        Ok(all.iter().filter(ours).cloned().collect())
    }
}

/// The client that does what it is told.
pub struct Client<'a> {
    bed: &'a Bed,
    pub program: Running<'a>,
    lines: RefCell<BufReader<UnixStream>>,
}

impl Client<'_> {
    /// A command whose answer nobody waits for.
    pub fn begin(&self, line: &str) -> Result<()> {
        Ok(writeln!(self.lines.borrow_mut().get_mut(), "{line}")?)
    }

    /// One command and its answer.
    pub fn say(&self, line: &str) -> Result<String> {
        self.begin(line)?;
        let mut lines = self.lines.borrow_mut();
        let mut answer = String::new();
        lines.read_line(&mut answer).with_context(|| format!("{line}: {:?}", self.program.so_far()))?;
        Ok(answer.trim().into())
    }

    /// The same; the answer must be "ok ...".
    pub fn tell(&self, line: &str) -> Result<String> {
        let answer = self.say(line)?;
        ensure!(answer.starts_with("ok"), "{line}: {answer}; {:?}", self.program.so_far());
        Ok(answer)
    }

    /// Opens a connection and talks on it.
    pub fn open(&self, name: &str, port: u16) -> Result<()> {
        self.tell(&format!("open {name} {port}"))?;
        self.tell(&format!("talk {name} 200 1000"))?;
        Ok(())
    }

    /// Talks until the newest connection to `port` is in memory; the share on `lo` proves it.
    pub fn moves_to_memory(&self, name: &str) -> Result<()> {
        self.tell(&format!("talk {name} 300 1000"))?;
        let before = self.bed.net.lo()?;
        self.tell(&format!("talk {name} 300 4000"))?;
        let bytes = (self.bed.net.lo()? - before).bytes;
        if flipping() {
            return Ok(());
        }
        ensure!(bytes < 2 * 300 * 4000 / 20, "{name}: {bytes} bytes on lo; {:?}", self.bed.socks()?);
        Ok(())
    }

    /// Talks, and all of it crosses `lo`.
    pub fn stays_on_tcp(&self, name: &str) -> Result<()> {
        let before = self.bed.net.lo()?;
        self.tell(&format!("talk {name} 300 4000"))?;
        let bytes = (self.bed.net.lo()? - before).bytes;
        ensure!(bytes >= 2 * 300 * 4000, "{name}: {bytes} bytes on lo; {:?}", self.bed.socks()?);
        Ok(())
    }

    /// The reasons that this client's connections show, one for each.
    pub fn reasons(&self) -> Result<Vec<String>> {
        let mut reasons = Vec::new();
        for s in self.bed.socks()? {
            if s["pid"].as_i64() == Some(self.program.pid().into()) {
                reasons.push(s["reason"]["name"].as_str().context("reason")?.to_string());
            }
        }
        Ok(reasons)
    }
}
