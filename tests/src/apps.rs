//! Owns: starting the servers of other projects in a test's namespace, and stopping them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::dump;
use crate::net::Net;
use crate::process::{Load, Program, Running, eventually, which};

/// The port that servers in tests listen on: each test has a namespace of its own.
pub const PORT: u16 = 7000;

/// Bytes that don't compress into a pattern, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A redis-server with its data in a directory of its own.
pub struct Redis<'a> {
    pub net: &'a Net,
    pub load: Load,
    server: Running<'a>,
    pub dir: TempDir,
}

impl<'a> Redis<'a> {
    pub fn start(net: &'a Net, load: Load) -> Result<Redis<'a>> {
        Redis::start_with(net, load, &[])
    }

    /// `before` is a program that starts the server, with its arguments.
    pub fn start_with(net: &'a Net, load: Load, before: &[&str]) -> Result<Redis<'a>> {
        let dir = TempDir::new()?;
        open_to_all(dir.path())?;
        let server = which("redis-server")?;
        let server = server.to_str().context("path")?;
        let mut line: Vec<&str> = before.to_vec();
        line.push(server);
        let port = PORT.to_string();
        let server = Program::new(net, load, line[0])
            .args(&line[1..])
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--protected-mode", "no"])
            .args(["--appendonly", "no", "--enable-debug-command", "yes"])
            .dir(dir.path())
            .start()?;
        let redis = Redis { net, load, server, dir };
        net.wait_listen(PORT).with_context(|| format!("{:?}", redis.server.so_far()))?;
        Ok(redis)
    }

    pub fn cli(&self, args: &[&str]) -> Result<String> {
        Program::new(self.net, self.load, which("redis-cli")?).args(["-p", &PORT.to_string()]).args(args).run_ok()
    }

    /// Sets a key from bytes.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let file = self.dir.path().join("value");
        fs::write(&file, value)?;
        let out = Program::new(self.net, self.load, which("redis-cli")?)
            .args(["-p", &PORT.to_string(), "-x", "set", key])
            .stdin(fs::File::open(file)?)
            .run_ok()?;
        ensure!(out.trim() == "OK", "set: {out}");
        Ok(())
    }

    /// The bytes of a key.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        let out = self.dir.path().join("out");
        let line = format!("exec {} -p {PORT} --raw get {key} > {}", which("redis-cli")?.display(), out.display());
        Program::new(self.net, self.load, "sh").args(["-c", &line]).run_ok()?;
        let mut bytes = fs::read(out)?;
        ensure!(bytes.pop() == Some(b'\n'), "redis-cli ends its output with a newline");
        Ok(bytes)
    }

    /// Feeds commands in the protocol's own form through one connection (redis-cli --pipe).
    pub fn pipe(&self, commands: &[u8]) -> Result<()> {
        let file = self.dir.path().join("commands");
        fs::write(&file, commands)?;
        let out =
            Program::new(self.net, self.load, which("redis-cli")?).args(["-p", &PORT.to_string(), "--pipe"]).stdin(fs::File::open(file)?).run_ok()?;
        ensure!(out.contains("errors: 0"), "{out}");
        Ok(())
    }

    pub fn benchmark(&self, args: &[&str]) -> Result<Running<'a>> {
        Program::new(self.net, self.load, which("redis-benchmark")?).args(["-p", &PORT.to_string(), "--csv"]).args(args).start()
    }

    /// What the server itself counted: bytes it read from and wrote to its clients.
    pub fn payload(&self) -> Result<u64> {
        let stats = self.cli(&["info", "stats"])?;
        Ok(info(&stats, "total_net_input_bytes")? + info(&stats, "total_net_output_bytes")?)
    }

    pub fn pid(&self) -> i32 {
        self.server.pid()
    }

    /// Shuts it down; it must end with 0.
    pub fn stop(self) -> Result<()> {
        let ended = self.server.stop()?;
        ensure!(ended.status.success(), "{ended}");
        Ok(())
    }
}

/// A number in the answer to INFO.
pub fn info(text: &str, name: &str) -> Result<u64> {
    text.lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|v| v.trim().parse().ok())
        .with_context(|| format!("{name} in:\n{text}"))
}

/// An nginx with a few files, in a directory of its own.
pub struct Nginx<'a> {
    pub net: &'a Net,
    pub load: Load,
    pub dir: TempDir,
    before: Vec<String>,
}

/// The files that it serves: name and size.
pub const FILES: &[(&str, usize)] = &[("1k", 1024), ("64k", 65536), ("20m", 20 << 20)];

impl<'a> Nginx<'a> {
    pub fn start(net: &'a Net, load: Load, workers: u32, sendfile: &str) -> Result<Nginx<'a>> {
        Nginx::start_with(net, load, workers, sendfile, &[])
    }

    /// `before` is a program that starts the binary, with its arguments; its workers keep their user.
    pub fn start_with(net: &'a Net, load: Load, workers: u32, sendfile: &str, before: &[String]) -> Result<Nginx<'a>> {
        let dir = TempDir::new()?;
        open_to_all(dir.path())?;
        for name in ["html", "logs", "body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            fs::create_dir(dir.path().join(name))?;
            open_to_all(&dir.path().join(name))?;
        }
        for (name, size) in FILES {
            fs::write(dir.path().join("html").join(name), noise(*size as u64, *size))?;
        }
        let user = if before.is_empty() { "" } else { "user root;\n" };
        fs::write(
            dir.path().join("nginx.conf"),
            format!(
                "{user}worker_processes {workers};\npid nginx.pid;\nerror_log logs/error.log;\n\
                 events {{ worker_connections 512; }}\n\
                 http {{\n  access_log off;\n  sendfile {sendfile};\n  keepalive_requests 100000000;\n\
                 client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;\n\
                 uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
                 server {{\n    listen 127.0.0.1:{PORT};\n    root html;\n\
                 location = /empty {{ return 200 ''; }}\n\
                 location = /pid {{ return 200 '$pid'; }}\n  }}\n}}\n"
            ),
        )?;
        let nginx = Nginx { net, load, dir, before: before.to_vec() };
        nginx.command(&[])?; // daemon on: the started process ends at once
        net.wait_listen(PORT)?;
        Ok(nginx)
    }

    /// Runs the nginx binary on this instance.
    pub fn command(&self, args: &[&str]) -> Result<()> {
        let binary = which("nginx")?.display().to_string();
        let line: Vec<_> = self.before.iter().chain([&binary]).collect();
        Program::new(self.net, self.load, line[0])
            .args(&line[1..])
            .args(["-e", "logs/error.log", "-c", "nginx.conf", "-p"])
            .args([self.dir.path()])
            .args(args)
            .dir(self.dir.path())
            .run_ok()
            .with_context(|| self.log())?;
        Ok(())
    }

    pub fn master(&self) -> Result<i32> {
        Ok(fs::read_to_string(self.dir.path().join("nginx.pid"))?.trim().parse()?)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("logs/error.log")).unwrap_or_default()
    }

    /// Adds "large": so many times the file of 20 MB. Returns its size.
    pub fn add_large_file(&self, times: usize) -> Result<u64> {
        use std::io::Write;
        let html = self.dir.path().join("html");
        let part = fs::read(html.join("20m"))?;
        let mut file = fs::File::create(html.join("large"))?;
        for _ in 0..times {
            file.write_all(&part)?;
        }
        Ok((part.len() * times) as u64)
    }

    /// Fetches a file and compares it.
    pub fn fetch(&self, name: &str) -> Result<()> {
        let out: PathBuf = self.dir.path().join(format!("got-{name}"));
        let url = format!("http://127.0.0.1:{PORT}/{name}");
        Program::new(self.net, self.load, which("curl")?).args(["-sS", "--fail", "-o"]).args([&out]).args([&url]).run_ok()?;
        ensure!(fs::read(out)? == fs::read(self.dir.path().join("html").join(name))?, "{name}: other bytes");
        Ok(())
    }

    /// Asks it to end when its requests are done, and waits for the master's end.
    pub fn stop(&self) -> Result<()> {
        let master = self.master()?;
        signal(master, nix::sys::signal::Signal::SIGQUIT)?;
        eventually("nginx ends", || Ok(has_ended(master))).with_context(|| dump::all(&self.net.pids()))
    }
}

/// Waits for the end of a redis-benchmark whose server was killed. It may also run in circles then, natively
/// too: its `cliWriteConn` makes EAGAIN of every error that a send met, and its caller tries again at once,
/// for ever, without a system call. True: it did, and it was killed.
pub fn benchmark_ends(mut benchmark: Running) -> Result<bool> {
    let end = Instant::now() + Duration::from_secs(15);
    while !benchmark.gone()? && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    if benchmark.gone()? {
        let ended = benchmark.wait(LONG)?;
        ensure!(!ended.status.success(), "{ended}");
        return Ok(false);
    }
    // Never in the library, nor waiting for anything, and seen in that function.
    let mut seen = String::new();
    for _ in 0..8 {
        let stacks = dump::stacks(benchmark.pid()).context("gdb")?;
        ensure!(!stacks.contains("libsmcr") && !stacks.contains("epoll_wait"), "redis-benchmark neither ends nor runs in its own circles:\n{stacks}");
        seen += &stacks;
    }
    ensure!(seen.contains(" in cliWriteConn ("), "redis-benchmark does not end:\n{seen}");
    benchmark.signal(nix::sys::signal::Signal::SIGKILL)?;
    benchmark.wait(LONG)?;
    Ok(true)
}

/// The workers of an nginx master: its children.
pub fn workers(master: i32) -> Result<Vec<i32>> {
    let text = fs::read_to_string(format!("/proc/{master}/task/{master}/children"))?;
    Ok(text.split_whitespace().filter_map(|p| p.parse().ok()).collect())
}

/// Whether a process is gone, or only waits for a parent that need not be ours: a daemon's is process 1.
fn has_ended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.starts_with(" Z"))
}

pub fn signal(pid: i32, signal: nix::sys::signal::Signal) -> Result<()> {
    Ok(nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal)?)
}

fn open_to_all(dir: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(dir, fs::Permissions::from_mode(0o777))?)
}

/// For programs that move much.
pub use crate::process::DEADLINE as LONG;
