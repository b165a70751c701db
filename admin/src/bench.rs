//! The command bench: the same exchange plain and under the library, each end a process of its
//! own, as programs are. Its way of starting such processes serves `check` too.

mod node;

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use smcr_proto::page::State;

use crate::cli::BenchArgs;
use crate::fail::usage;
use crate::library;
use crate::out::{self, Table};

pub use node::run as run_node;

/// Where `bench --listen` listens, after the number of the SMC-R specification.
const PORT: u16 = 7609;

/// What one client measured.
#[derive(Serialize, Deserialize, Clone)]
pub struct Measured {
    /// ping or stream.
    pub kind: String,
    pub size: u32,
    pub seconds: f64,
    /// Answers of a ping-pong, or bytes of a stream, per second.
    pub per_second: f64,
    /// Time of an answer in microseconds: half of them, and 99 of 100, were faster.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// What the connection was in the end: tcp, shm, rdma, or no word without the library.
    pub mode: Option<String>,
    /// Why it was not accelerated.
    pub reason: Option<String>,
}

#[derive(Serialize)]
struct Comparison {
    tcp: Measured,
    smcr: Measured,
    ratio: f64,
}

pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    if !(args.time > 0.0 && args.time <= 3600.0) {
        return Err(usage(format!("--time {}: write 0.1 to 3600 seconds", args.time)));
    }
    let library = library::find()?;
    if let Some(at) = args.listen {
        return listen(at, &library);
    }
    let mut all = Vec::new();
    for (kind, size) in [("ping", args.ping_size), ("stream", args.stream_size)] {
        let tcp = measure(args, kind, size, None)?;
        let smcr = measure(args, kind, size, Some(&library))?;
        let ratio = match (tcp.p50_us, smcr.p50_us) {
            (Some(a), Some(b)) => a / b,
            _ => smcr.per_second / tcp.per_second,
        };
        all.push(Comparison { tcp, smcr, ratio });
    }
    progress("");
    if args.json {
        return out::json(&all);
    }
    out::print(&as_text(&all))
}

fn as_text(all: &[Comparison]) -> String {
    let mut table = Table::new(&["Work", "Over", "Mode", ">p50 us", ">p99 us", ">Per second", ">Ratio"]);
    let mut remarks = String::new();
    for c in all {
        for (over, m, ratio) in [("tcp", &c.tcp, None), ("smcr", &c.smcr, Some(c.ratio))] {
            let us = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.2}"));
            let per_second = match m.kind.as_str() {
                "stream" => format!("{:.2} GB", m.per_second / 1e9),
                _ => out::rate(m.per_second),
            };
            table.row(vec![
                format!("{} {}", m.kind, m.size),
                over.into(),
                m.mode.clone().unwrap_or_else(|| "tcp".into()),
                us(m.p50_us),
                us(m.p99_us),
                per_second,
                ratio.map_or("-".into(), |r: f64| format!("{r:.2}x")),
            ]);
        }
        if let Some(reason) = &c.smcr.reason {
            remarks += &format!("{}: not accelerated: {reason}\n", c.smcr.kind);
        }
    }
    table.render() + &remarks
}

fn measure(args: &BenchArgs, kind: &str, size: u32, lib: Option<&Path>) -> anyhow::Result<Measured> {
    let over = if lib.is_some() { "smcr" } else { "tcp" };
    progress(&format!("{kind} {size} over {over} ..."));
    let (to, _server) = match &args.peer {
        Some(peer) => (peer_address(peer)?, None),
        None => {
            let server = Server::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), lib)?;
            (server.at, Some(server))
        }
    };
    let arguments = [to.to_string(), kind.into(), size.to_string(), args.time.to_string()];
    let line = answer(node("client", lib)?.args(arguments))?;
    serde_json::from_str(&line).context("the measuring process printed no result")
}

fn peer_address(peer: &str) -> anyhow::Result<SocketAddr> {
    let found = peer.to_socket_addrs().or_else(|_| (peer.trim_matches(['[', ']']), PORT).to_socket_addrs());
    let mut found = found.with_context(|| format!("{peer} has no address"))?;
    found.next().ok_or_else(|| anyhow!("{peer} has no address"))
}

/// Serves until our input ends or somebody stops us.
fn listen(at: SocketAddr, library: &Path) -> anyhow::Result<()> {
    let mut server = Server::start(at, Some(library))?;
    out::print(&format!("listening at {}; stop with Ctrl-C\n", server.at))?;
    // A wait would close it, and with it end the process that we wait for.
    let _input = server.child.stdin.take();
    server.child.wait()?;
    bail!("the serving process ended")
}

/// A process that answers; ends with this value.
struct Server {
    child: Child,
    at: SocketAddr,
}

impl Server {
    fn start(at: SocketAddr, lib: Option<&Path>) -> anyhow::Result<Server> {
        let mut command = node("server", lib)?;
        command.arg(at.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        match line.trim().parse() {
            Ok(at) => Ok(Server { child, at }),
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                bail!("the serving process did not start at {at}")
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program as one end, plain or under the library.
fn node(role: &str, lib: Option<&Path>) -> anyhow::Result<Command> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(own);
    command.args(["__node", role]);
    match lib {
        Some(lib) => {
            let old = std::env::var_os("LD_PRELOAD");
            command.env("LD_PRELOAD", library::preload(lib, old.as_deref()));
        }
        None => {
            command.env_remove("LD_PRELOAD");
        }
    }
    Ok(command)
}

/// The line that a process prints; its complaint if it fails.
fn answer(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().context("cannot start this program")?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        match complaint.trim().trim_start_matches("smcrctl: ") {
            "" => bail!("the measuring process ended ({})", output.status),
            told => bail!("{told}"),
        }
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Whether a program that is started with a library has it.
pub fn loads(library: &Path) -> anyhow::Result<bool> {
    let name = library.file_name().unwrap_or_default();
    Ok(answer(node("loaded", Some(library))?.arg(name))? == "yes")
}

/// What the library says of a connection that carries nothing.
pub fn probe(to: SocketAddr) -> anyhow::Result<serde_json::Value> {
    let library: PathBuf = library::find()?;
    let line = answer(node("probe", Some(&library))?.arg(to.to_string()))?;
    serde_json::from_str(&line).context("the probing process printed no result")
}

/// Whether a connection as `sock --json` shows it is on its way to a link, by a handshake that has not ended.
pub fn is_in_handshake(said: &serde_json::Value) -> bool {
    said["state"] == State::Negotiating.label() && said["mode"] != "tcp"
}

/// Tells on a terminal what is going on; each text takes the place of the last.
fn progress(text: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{text}");
        let _ = err.flush();
    }
}
