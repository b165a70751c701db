//! Owns: the mill (`c/mill.c`) from the outside: its two ends, its board, its deaths. What a survivor must have seen
//! is `judge`'s.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::apps::PORT;
use crate::dump;
pub use crate::judge::proofs_unread;
use crate::judge::{END, goes_on, has_moved, judge};
use crate::net::Net;
use crate::page::{Page, Record, Totals};
use crate::process::{Load, Program, Running};
use crate::slow::MARK;
use crate::twice::compile_with;

/// The ways to wait; each takes other paths through the library.
pub const MODES: [&str; 5] = ["threads", "level", "edge", "raw", "poll"];

/// How long a survivor may take until all of its connections have ended.
const PATIENCE: Duration = Duration::from_secs(20);

const HEADER: u64 = 128;
const SIDE: u64 = 56;
/// The two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    Client,
    Server,
}

impl Who {
    pub fn other(self) -> Who {
        match self {
            Who::Client => Who::Server,
            Who::Server => Who::Client,
        }
    }
}

/// One end of one connection, as it stands on the board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side {
    pub sent: u64,
    pub offered: u64,
    pub got: u64,
    pub asked: u64,
    pub wrong: u32,
    pub in_end: u32,
    pub out_end: u32,
    pub phase: u32,
    pub port: u32,
}

/// Both ends of all connections.
pub type Lines = Vec<[Side; 2]>;

/// A way to die.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    Kill,
    StopAndKill,
    Terminate,
    /// `_exit` in a signal handler.
    ExitInHandler,
    /// `exit` in the main thread while the others are in calls.
    Exit,
    /// A crash, and another in the handler.
    CrashInHandler,
    /// exec in a signal handler; half of the connections are inherited.
    Exec,
}

impl Death {
    pub const ALL: [Death; 7] =
        [Death::Kill, Death::StopAndKill, Death::Terminate, Death::ExitInHandler, Death::Exit, Death::CrashInHandler, Death::Exec];

    fn signals(self) -> &'static [Signal] {
        match self {
            Death::Kill => &[Signal::SIGKILL],
            Death::StopAndKill => &[Signal::SIGSTOP, Signal::SIGKILL],
            Death::Terminate => &[Signal::SIGTERM],
            Death::ExitInHandler => &[Signal::SIGUSR1],
            Death::Exit => &[Signal::SIGUSR2],
            Death::CrashInHandler => &[Signal::SIGSEGV],
            Death::Exec => &[Signal::SIGHUP],
        }
    }
}

/// How the mill is run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub client: (Load, String),
    pub server: (Load, String),
    pub lines: usize,
    pub seed: u64,
    /// More of the environment, for one end or both.
    pub env: Vec<(Option<Who>, String, String)>,
}

/// A mill at work.
pub struct Mill<'a> {
    net: &'a Net,
    plan: Plan,
    dir: TempDir,
    board: File,
    client: Option<Running<'a>>,
    server: Option<Running<'a>>,
    round: u32,
    /// Bytes that the client had moved through memory when the round began.
    before: u64,
}

impl<'a> Mill<'a> {
    pub fn new(net: &'a Net, plan: Plan) -> Result<Mill<'a>> {
        let dir = TempDir::new()?;
        let path = dir.path().join("board");
        std::fs::write(&path, vec![0u8; 16384])?;
        let board = File::options().read(true).write(true).open(&path)?;
        Ok(Mill { net, plan, dir, board, client: None, server: None, round: 0, before: 0 })
    }

    fn word(&self, index: u64) -> Result<u32> {
        let mut b = [0; 4];
        self.board.read_exact_at(&mut b, index * 4)?;
        Ok(u32::from_ne_bytes(b))
    }

    fn put(&self, index: u64, value: u32) -> Result<()> {
        Ok(self.board.write_all_at(&value.to_ne_bytes(), index * 4)?)
    }

    /// The board now.
    pub fn lines(&self) -> Result<Lines> {
        let mut raw = vec![0u8; self.plan.lines * 2 * SIDE as usize];
        self.board.read_exact_at(&mut raw, HEADER)?;
        let side = |b: &[u8]| {
            let long = |i: usize| u64::from_ne_bytes(b[i * 8..i * 8 + 8].try_into().expect("eight"));
            let word = |i: usize| u32::from_ne_bytes(b[32 + i * 4..36 + i * 4].try_into().expect("four"));
            Side {
                sent: long(0),
                offered: long(1),
                got: long(2),
                asked: long(3),
                wrong: word(0),
                in_end: word(1),
                out_end: word(2),
                phase: word(3),
                port: word(4),
            }
        };
        Ok(raw.chunks_exact(2 * SIDE as usize).map(|l| [side(&l[..SIDE as usize]), side(&l[SIDE as usize..])]).collect())
    }

    /// Bytes that were got by both ends, on all lines.
    pub fn moved(&self) -> Result<u64> {
        Ok(self.lines()?.iter().flatten().map(|s| s.got).sum())
    }

    pub fn running(&mut self, who: Who) -> &mut Option<Running<'a>> {
        match who {
            Who::Client => &mut self.client,
            Who::Server => &mut self.server,
        }
    }

    pub fn pid(&self, who: Who) -> Result<i32> {
        let end = if who == Who::Client { &self.client } else { &self.server };
        end.as_ref().map(Running::pid).context("not running")
    }

    fn start(&self, who: Who) -> Result<Running<'a>> {
        let files = ["mill.c", "mill_threads.c", "mill_events.c"];
        let program = compile_with("cc", "mill", &files, &["-O1", "-g", "-pthread"])?;
        let (load, mode) = if who == Who::Client { &self.plan.client } else { &self.plan.server };
        let role = if who == Who::Client { "call" } else { "serve" };
        let mut program = Program::new(self.net, *load, program).args([role, mode, &PORT.to_string()]);
        program = program.args([self.dir.path().join("board")]);
        program = program.args([(self.plan.seed % 1_000_000).to_string(), self.plan.lines.to_string()]);
        for (_, name, value) in self.plan.env.iter().filter(|(of, ..)| of.is_none_or(|of| of == who)) {
            program = program.env(name, value);
        }
        program.start()
    }

    /// Starts whoever is not there, and lets the connecting end dial anew.
    pub fn begin(&mut self) -> Result<()> {
        if self.server.is_none() {
            self.server = Some(self.start(Who::Server)?);
            self.put(2, 0)?;
            self.net.wait_listen(PORT)?;
        }
        if self.client.is_none() {
            self.put(0, 0)?; // it dials when this changes
            self.client = Some(self.start(Who::Client)?);
        }
        let lines = vec![0u8; self.plan.lines * 2 * SIDE as usize];
        self.board.write_all_at(&lines, HEADER)?;
        self.put(1, 0)?;
        self.round += 1;
        self.before = self.totals(Who::Client)?.memory;
        self.put(0, self.round)
    }

    /// Waits until so many bytes were got, or the deadline has passed.
    pub fn await_moved(&self, bytes: u64) -> Result<()> {
        self.until("bytes move", |_| Ok(self.moved()? >= bytes))
    }

    fn until(&self, what: &str, mut done: impl FnMut(&Mill) -> Result<bool>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !done(self)? {
            if Instant::now() > end {
                let (stuck, before) = (self.show()?, self.lines()?);
                std::thread::sleep(Duration::from_secs(1));
                let slow = if goes_on(&before, &self.lines()?) { MARK } else { "" };
                let later = format!("a second later\n{}{}", self.show()?, self.net.read("net/tcp")?);
                bail!("{slow}{what}: not within the deadline\n{stuck}{later}{}{}", self.tell_ends(), dump::all(&self.net.pids()));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Ok(())
    }

    /// How each end is, and what it has said on standard error.
    fn tell_ends(&self) -> String {
        let ends = [("client", &self.client), ("server", &self.server)];
        ends.iter().map(|(name, end)| end.as_ref().map_or(format!("{name}: none\n"), |end| format!("{name}: {}\n", end.state()))).collect()
    }

    /// Stops one end for a while; both must go on afterwards.
    pub fn pause(&mut self, who: Who, time: Duration) -> Result<()> {
        let pid = self.pid(who)?;
        crate::apps::signal(pid, Signal::SIGSTOP)?;
        std::thread::sleep(time);
        crate::apps::signal(pid, Signal::SIGCONT)?;
        let before = self.lines()?;
        self.until("all go on after SIGCONT", |m| {
            let now = m.lines()?;
            Ok(now.iter().zip(&before).enumerate().all(|(i, (now, before))| now[0].phase != 1 || now[1].phase != 1 || has_moved(i, now, before)))
        })
    }

    /// Waits for an end that kills itself, for some time; then as [`Mill::die`]. False: it lives.
    pub fn await_death(&mut self, who: Who, time: Duration) -> Result<bool> {
        let end = Instant::now() + time;
        let mut before = self.lines()?;
        let mut pages = self.pages(who);
        while !self.running(who).as_mut().context("not running")?.gone()? {
            if Instant::now() > end {
                return Ok(false);
            }
            before = self.lines()?;
            if pages[0].is_none() {
                pages = self.pages(who);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let victim = self.running(who).take().context("not running")?;
        self.judge_all(who, victim, &before, &pages).context("at that step")?;
        Ok(true)
    }

    /// One end dies; the other one must see it as TCP shows it, on all lines.
    pub fn die(&mut self, who: Who, how: Death) -> Result<()> {
        let before = self.lines()?;
        let pages = self.pages(who);
        let victim = self.running(who).take().context("not running")?;
        for signal in how.signals() {
            victim.signal(*signal)?;
        }
        self.judge_all(who, victim, &before, &pages).with_context(|| format!("{how:?} of {who:?}"))
    }

    /// The pages of the one that dies and of the survivor, to be read afterwards.
    fn pages(&self, who: Who) -> [Option<Page>; 2] {
        [who, who.other()].map(|end| self.pid(end).and_then(Page::of).ok().flatten())
    }

    fn judge_all(&self, who: Who, mut victim: Running<'a>, before: &Lines, pages: &[Option<Page>; 2]) -> Result<()> {
        victim.await_end(PATIENCE)?;
        self.await_closed(who.other())?;
        let (now, d, s) = (self.lines()?, who as usize, who.other() as usize);
        for (i, (now, before)) in now.iter().zip(before).enumerate() {
            let port = now[Who::Client as usize].port as u16;
            let dead = record(&pages[0], who, port);
            judge(&now[s], &now[d], &before[s], dead).with_context(|| {
                let alive = record(&pages[1], who.other(), port);
                format!("line {i}\nsurvivor {:?}\ndead     {:?}\nas their pages show it\nsurvivor {alive:?}\ndead     {dead:?}", now[s], now[d])
            })?;
        }
        Ok(())
    }

    /// Nobody sends any more, and all lines end by and by.
    pub fn stop(&self) -> Result<()> {
        self.put(1, 1)
    }

    /// Both ends finish in order; everything that was sent must have been got.
    pub fn end(&mut self) -> Result<()> {
        self.until("all lines are open", |m| Ok(m.word(4)? == m.round && m.lines()?.iter().all(|l| l.iter().all(|s| s.phase > 0))))?;
        self.stop()?;
        self.await_closed(Who::Client)?;
        self.await_closed(Who::Server)?;
        for (i, [c, s]) in self.lines()?.iter().enumerate() {
            let whole = c.got == s.sent && s.got == c.sent && c.wrong + s.wrong == 0;
            let ends = [c, s].iter().all(|e| e.in_end == END && e.out_end == END);
            ensure!(whole && ends, "line {i} at the end\nclient {c:?}\nserver {s:?}\nas their pages show it\n{}", self.records(c.port as u16));
        }
        Ok(())
    }

    /// What the pages of both ends show of the connection with this port of the client's.
    fn records(&self, port: u16) -> String {
        let pages = self.pages(Who::Client);
        let show = |(page, who): (_, Who)| format!("{who:?} {:?}\n", record(page, who, port));
        pages.iter().zip([Who::Client, Who::Server]).map(show).collect()
    }

    /// What the page of this end shows of all connections that it has had.
    pub fn totals(&self, who: Who) -> Result<Totals> {
        Totals::of(self.pid(who)?)
    }

    /// Waits until so many bytes of this round have gone through memory; natively not.
    pub fn await_in_memory(&self, bytes: u64) -> Result<()> {
        if !self.is_native() {
            self.until("bytes go through memory", |m| Ok(m.totals(Who::Client)?.memory >= m.before + bytes))?;
        }
        Ok(())
    }

    /// Of the lines that this end, which has lived all the time, has had until now, some were in memory; natively none.
    pub fn ensure_in_memory(&self, who: Who, few: u64, bytes: u64) -> Result<()> {
        let totals = self.totals(who)?;
        let what = format!("{} calls {}", self.plan.client.1, self.plan.server.1);
        if self.is_native() { totals.ensure_on_tcp(&what) } else { totals.ensure_in_memory(&what, few, bytes) }
    }

    fn is_native(&self) -> bool {
        [self.plan.client.0, self.plan.server.0].contains(&Load::Native)
    }

    fn await_closed(&self, who: Who) -> Result<()> {
        match who {
            Who::Client => self.until("the client's connections end", |m| Ok(m.word(4)? == m.round && m.lines()?.iter().all(|l| l[0].phase != 1))),
            Who::Server => self.until("the server's connections end", |m| Ok(m.net.in_use(PORT)? == 0 && m.word(2)? == 0)),
        }
    }

    fn show(&self) -> Result<String> {
        let lines = self.lines()?;
        let show = |(i, [c, s]): (usize, &[Side; 2])| format!("line {i}\n  client {c:?}\n  server {s:?}\n{}", self.records(c.port as u16));
        Ok(lines.iter().enumerate().map(show).collect())
    }
}

/// What the page of this end shows of the connection with this port of the client's.
fn record(page: &Option<Page>, who: Who, port: u16) -> Option<Record> {
    let (local, peer) = if who == Who::Client { (port, PORT) } else { (PORT, port) };
    page.as_ref()?.find(local, peer).ok()?
}
