//! What the tests with hostile peers share: the echo server, clients that talk when told to, the
//! program that breaks the rules, and what `smcrctl sock` says of a process.
#![allow(dead_code)] // each test program uses a part

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use smcr_tests::apps::PORT;
use smcr_tests::library;
use smcr_tests::net::Net;
use smcr_tests::process::{DEADLINE, Load, Program, Running, eventually, flipping};
use smcr_tests::twice::compile_with;

fn compiled(name: &str) -> Result<PathBuf> {
    compile_with("cc", name, &[&format!("{name}.c")], &["-O1", "-g", "-pthread"])
}

/// Starts `echo_many` in a mode, on addresses (none: [::]).
pub fn server<'a>(net: &'a Net, load: Load, mode: &str, address: &[&str]) -> Result<Running<'a>> {
    server_with(net, load, mode, address, &[])
}

/// A server that hostile programs attack. They follow no way back to TCP, so its own sending stays in memory while connections flip;
/// what honest clients send to it flips.
pub fn attacked<'a>(net: &'a Net, mode: &str, variables: &[(&str, &str)]) -> Result<Running<'a>> {
    let mut variables = variables.to_vec();
    if flipping() {
        variables.push(("SMCR_FLIP", "0"));
    }
    server_with(net, Load::Library, mode, &[], &variables)
}

/// As [`attacked`], where `before` is done in the server's process first.
pub fn attacked_when<'a>(net: &'a Net, mode: &str, before: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static) -> Result<Running<'a>> {
    let mut program = echo_many(net, Load::Library, mode)?.before_exec(before);
    if flipping() {
        program = program.env("SMCR_FLIP", "0");
    }
    listening(net, program)
}

fn echo_many<'a>(net: &'a Net, load: Load, mode: &str) -> Result<Program<'a>> {
    Ok(Program::new(net, load, compiled("echo_many")?).args([mode, &PORT.to_string()]))
}

/// Starts it, until it listens.
fn listening<'a>(net: &'a Net, program: Program<'a>) -> Result<Running<'a>> {
    let running = program.start()?;
    net.wait_listen(PORT).with_context(|| format!("{:?}", running.so_far()))?;
    Ok(running)
}

/// As [`server`] with variables of its environment.
pub fn server_with<'a>(net: &'a Net, load: Load, mode: &str, address: &[&str], variables: &[(&str, &str)]) -> Result<Running<'a>> {
    let mut program = echo_many(net, load, mode)?.args(address);
    for (name, value) in variables {
        program = program.env(name, value);
    }
    listening(net, program)
}

/// As [`server`]; `before` is a program that starts it, with its arguments.
pub fn server_through<'a>(net: &'a Net, load: Load, before: &[&str], mode: &str) -> Result<Running<'a>> {
    let echo = compiled("echo_many")?;
    let line = [before, &[echo.to_str().context("path")?]].concat();
    listening(net, Program::new(net, load, line[0]).args(&line[1..]).args([mode, &PORT.to_string()]))
}

/// A client that exchanges bytes when it is told to.
pub struct Talker<'a> {
    running: Running<'a>,
    to: std::io::PipeWriter,
    told: usize,
    answered: usize,
}

impl<'a> Talker<'a> {
    pub fn start(net: &'a Net, load: Load, args: &[&str]) -> Result<Talker<'a>> {
        Talker::start_through(net, load, &[], args)
    }

    /// `before` is a program that starts the client, with its arguments.
    pub fn start_through(net: &'a Net, load: Load, before: &[&str], args: &[&str]) -> Result<Talker<'a>> {
        let talker = compiled("talker")?;
        let mut line: Vec<&str> = before.to_vec();
        line.push(talker.to_str().context("path")?);
        line.extend(args);
        Talker::start_line(net, load, &line)
    }

    /// A client by its whole command line.
    pub fn start_line(net: &'a Net, load: Load, line: &[&str]) -> Result<Talker<'a>> {
        let (from, to) = std::io::pipe()?;
        let running = Program::new(net, load, line[0]).args(&line[1..]).stdin(from).start()?;
        Ok(Talker { running, to, told: 0, answered: 0 })
    }

    pub fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// What it has written: standard output and standard error.
    pub fn so_far(&self) -> (String, String) {
        self.running.so_far()
    }

    /// Begins to exchange so many bytes.
    pub fn begin(&mut self, bytes: usize) -> Result<()> {
        self.told += 1;
        Ok(writeln!(self.to, "{bytes}")?)
    }

    /// Gives it a line that is no number, and says what it has answered when it has done that.
    pub fn told(&mut self, line: &str) -> Result<String> {
        writeln!(self.to, "{line}")?;
        let before = self.answered;
        self.answered += 1;
        let answer = |out: &str| out.lines().filter_map(|l| l.strip_prefix("done ")).nth(before).map(str::to_owned);
        eventually(line, || {
            ensure!(!self.running.gone()?, "{:?}", self.running.so_far());
            Ok(answer(&self.running.so_far().0).is_some())
        })
        .with_context(|| format!("{:?}", self.running.so_far()))?;
        answer(&self.running.so_far().0).context("an answer")
    }

    /// Waits till all that was begun is whole.
    pub fn finish(&mut self) -> Result<()> {
        eventually("exchange", || {
            ensure!(!self.running.gone()?, "{:?}", self.running.so_far());
            Ok(self.running.so_far().0.matches("whole\n").count() == self.told)
        })
        .with_context(|| format!("{:?}", self.running.so_far()))
    }

    pub fn exchange(&mut self, bytes: usize) -> Result<()> {
        self.begin(bytes)?;
        self.finish()
    }

    /// What the library says of its connection.
    pub fn connection(&self) -> Result<Value> {
        let mut all = connections(self.pid())?;
        all.retain(|c| c["role"] == "client");
        ensure!(all.len() == 1, "{all:?}");
        Ok(all.remove(0))
    }

    /// Exchanges until the connection is accelerated, and a megabyte more.
    pub fn ensure_accelerated(&mut self) -> Result<Value> {
        for _ in 0..50 {
            self.exchange(20_000)?;
            if self.connection()?["state"] == "ACCELERATED" {
                break;
            }
        }
        self.exchange(1_000_000)?;
        let c = self.connection()?;
        ensure!(c["state"] == "ACCELERATED", "{c}");
        // The bytes themselves: nearly all through memory, or through both.
        let number = |name: &str| c["tx"][name].as_u64().context("tx");
        if flipping() {
            let sent = number("producer")? + number("tcp_bytes")?;
            ensure!(number("producer")? > 0 && number("switches")? > 2 && sent >= 1_000_000, "{c}");
        } else {
            ensure!(number("producer")? >= 1_000_000, "{c}");
        }
        Ok(c)
    }

    /// Exchanges much, and is on TCP afterwards for this reason.
    pub fn ensure_on_tcp(&mut self, reason: &str) -> Result<()> {
        for _ in 0..12 {
            self.exchange(200_000)?;
        }
        let c = self.connection()?;
        ensure!(c["reason"]["name"] == reason, "not {reason}: {c}");
        ensure!(c["tx"]["producer"] == 0 && c["rx"]["consumer"] == 0, "{c}");
        Ok(())
    }

    /// Ends it; it must have found everything right.
    pub fn end(self) -> Result<()> {
        drop(self.to);
        let ended = self.running.wait(DEADLINE)?;
        ensure!(ended.status.success(), "{ended}");
        Ok(())
    }
}

/// The connections of a process as `smcrctl sock` shows them.
pub fn connections(pid: i32) -> Result<Vec<Value>> {
    let all: Vec<Value> = serde_json::from_slice(&smcrctl(&["sock", "--json"])?)?;
    Ok(all.into_iter().filter(|c| c["pid"] == pid).collect())
}

/// What `smcrctl stats` says of a process.
pub fn stats(pid: i32) -> Result<Value> {
    Ok(serde_json::from_slice(&smcrctl(&["stats", "-a", "--json", "-p", &pid.to_string()])?)?)
}

/// A counter of a process.
pub fn counter(pid: i32, name: &str) -> Result<u64> {
    let stats = stats(pid)?;
    stats["totals"][name].as_u64().with_context(|| stats.to_string())
}

fn smcrctl(args: &[&str]) -> Result<Vec<u8>> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    let program = FOUND.get_or_init(|| library::smcrctl().expect("smcrctl"));
    let out = Command::new(program).args(args).env_remove("LD_PRELOAD").output()?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(out.stdout)
}

/// The program that breaks the rules, natively.
pub fn hostile<'a>(net: &'a Net, args: &[&str]) -> Program<'a> {
    Program::new(net, Load::Native, env!("CARGO_BIN_EXE_hostile")).args(args)
}

/// The same as another user: "nobody", or nobody in a user namespace of its own, there as root ("namespace") or as nobody of whom it
/// knows ("unmapped").
pub fn hostile_as<'a>(net: &'a Net, who: Option<&str>, args: &[&str]) -> Program<'a> {
    let program = hostile(net, args);
    match who {
        Some(who) => program.env("HOSTILE_AS", who),
        None => program,
    }
}

/// Tests of what other users do (`hostile_as`), each to a server that waits in another way: `$does(mode, who)`.
#[allow(unused_macros)]
macro_rules! by_others {
    ($does:expr) => {
        #[test]
        fn by_nobody() -> anyhow::Result<()> {
            hostile_common::where_others_are("epoll", "nobody", $does)
        }

        #[test]
        fn by_root_of_a_user_namespace() -> anyhow::Result<()> {
            hostile_common::where_others_are("threads", "namespace", $does)
        }

        #[test]
        fn by_nobody_of_a_user_namespace() -> anyhow::Result<()> {
            hostile_common::where_others_are("raw", "unmapped", $does)
        }
    };
}
#[allow(unused_imports)]
pub(crate) use by_others;

/// Only root can be another user.
pub fn where_others_are(mode: &str, who: &str, does: impl Fn(&str, &str) -> Result<()>) -> Result<()> {
    if is_root() { does(mode, who) } else { Ok(()) }
}

/// Runs it to its end, which must be a good one.
pub fn attack(net: &Net, args: &[&str]) -> Result<String> {
    attack_as(net, None, args)
}

/// The same as another user.
pub fn attack_as(net: &Net, who: Option<&str>, args: &[&str]) -> Result<String> {
    let ended = hostile_as(net, who, args).env("RUST_BACKTRACE", "0").start()?.wait(DEADLINE * 2)?;
    ensure!(ended.status.success(), "{ended}");
    Ok(ended.out)
}

/// Runs attacks, as whom `hostile_as` says, on a server while a client of it talks, before, meanwhile and after.
pub fn survive(mode: &str, who: Option<&str>, attacks: &[&[&str]]) -> Result<()> {
    let net = Net::new()?;
    let mut server = attacked(&net, mode, &[])?;
    let port = PORT.to_string();
    let mut friend = Talker::start(&net, Load::Library, &["127.0.0.1", &port])?;
    let mut native = Talker::start(&net, Load::Native, &["127.0.0.1", &port])?;
    friend.ensure_accelerated()?;
    for attack_args in attacks {
        friend.begin(3_000_000)?;
        native.begin(1_000_000)?;
        let mut line = vec![attack_args[0], "ADDRESS"];
        line.extend(&attack_args[1..]);
        let here = here();
        line[1] = &here;
        let out = attack_as(&net, who, &line);
        ensure!(!server.gone()?, "the server has died: {:?}\n{out:?}", server.so_far());
        println!("{mode}, {who:?}: {}", out.with_context(|| format!("{mode}: {attack_args:?}"))?.trim());
        friend.finish().with_context(|| format!("a friend, {mode}: {attack_args:?}"))?;
        native.finish().with_context(|| format!("a native one, {mode}: {attack_args:?}"))?;
    }
    let c = friend.connection()?;
    ensure!(c["state"] == "ACCELERATED", "{c}");
    friend.end()?;
    native.end()?;
    let mut late = Talker::start(&net, Load::Library, &["127.0.0.1", &port])?;
    late.ensure_accelerated()?;
    late.end()
}

/// The server's address for IPv4 clients.
pub fn here() -> String {
    format!("127.0.0.1:{PORT}")
}

/// As whom a third party comes: the server's user, and others where this is root.
pub fn everybody() -> Vec<Option<&'static str>> {
    let mut all = vec![None];
    if is_root() {
        all.extend([Some("nobody"), Some("namespace"), Some("unmapped")]);
    }
    all
}

/// The tests that need several uids are left out for ordinary users.
pub fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        println!("left out: needs root");
    }
    root
}
