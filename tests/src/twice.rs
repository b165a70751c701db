//! Owns: the run-twice harness. A case is a small program with two ends (`c/`, `py/`). It runs
//! natively, then with the library on both ends, on the listening end only, and on the connecting
//! end only; what each end prints and how it ends must be the same each time. With the library on
//! both ends its warm-up must have left TCP.

use std::ffi::OsStr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::library::{source_dir, work_dir};
use crate::net::{Lo, Net};
use crate::process::{Load, Program, flip_mean, flipping};
use crate::share::Share;

/// Which ends have the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    Neither,
    Both,
    ListenerOnly,
    ConnectorOnly,
}

impl Ends {
    fn of(self, listener: bool) -> Load {
        match (self, listener) {
            (Ends::Both, _) | (Ends::ListenerOnly, true) | (Ends::ConnectorOnly, false) => Load::Library,
            _ => Load::Native,
        }
    }
}

/// One case of a program.
#[derive(Clone, Debug)]
pub struct Case {
    pub program: PathBuf,
    pub name: String,
    /// No warm-up, so acceleration is not asked for.
    pub cold: bool,
    /// All payload that it reports must stay off TCP, not only the warm-up.
    pub whole: bool,
    /// A direction goes to memory.
    pub switches: bool,
    pub slow: bool,
}

/// What came of a run.
pub struct Outcome {
    /// What the listening and the connecting end printed, and how each ended.
    pub transcript: String,
    /// Payload and bytes on `lo` of each warm-up.
    pub warm: Vec<(u64, u64)>,
    pub payload: u64,
    /// Flips that both ends told of; None: neither came to its orderly end, or nothing was to flip.
    pub flips: Option<u64>,
    /// Sending directions that went to memory, as both ends told; None: neither came to its orderly end with a page to tell from.
    pub memory: Option<u64>,
    pub lo: Lo,
    pub notes: String,
}

/// The cases of a C source file in `c/`, which is compiled first.
pub fn cases(source: &str) -> Result<Vec<Case>> {
    let program = compile(source)?;
    let out = Command::new(&program).arg("list").output()?;
    ensure!(out.status.success(), "{source} list");
    Ok(parse_list(&program, &String::from_utf8_lossy(&out.stdout)))
}

/// The cases of a Python script in `py/`.
pub fn python_cases(script: &str) -> Result<Vec<Case>> {
    let program = source_dir().join("py").join(script);
    let out = Command::new(python()?).arg(&program).arg("list").output()?;
    ensure!(out.status.success(), "{script} list: {}", String::from_utf8_lossy(&out.stderr));
    Ok(parse_list(&program, &String::from_utf8_lossy(&out.stdout)))
}

/// The distribution's Python, not a wrapper script that happens to be first in PATH.
pub fn python() -> Result<PathBuf> {
    let usual = PathBuf::from("/usr/bin/python3");
    if usual.is_file() { Ok(usual) } else { crate::process::which("python3") }
}

fn parse_list(program: &Path, text: &str) -> Vec<Case> {
    text.lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default().to_string();
            let flags: Vec<_> = words.collect();
            let has = |flag| flags.contains(&flag);
            Case { program: program.into(), name, cold: has("cold"), whole: has("whole"), switches: has("switches"), slow: has("slow") }
        })
        .collect()
}

/// Compiles `c/NAME.c` with the runtime of the cases.
pub fn compile(source: &str) -> Result<PathBuf> {
    let stem = source.trim_end_matches(".c");
    compile_with("cc", stem, &[&format!("{stem}.c"), "case.c", "bytes.c"], &["-O1", "-g", "-pthread"])
}

/// Compiles files of `c/` into a program of that name, unless that was done from what is there now.
pub fn compile_with(cc: &str, name: &str, files: &[&str], options: &[&str]) -> Result<PathBuf> {
    static MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().unwrap_or_else(|e| e.into_inner());
    let program = work_dir().join(name);
    if made.contains(&program) {
        return Ok(program);
    }
    let sources = source_dir().join("c");
    let how = format!("{cc} {options:?} {files:?}");
    let note = work_dir().join(format!("{name}.how"));
    if is_made(&program, &sources, files)? && std::fs::read_to_string(&note).is_ok_and(|was| was == how) {
        made.push(program.clone());
        return Ok(program);
    }
    let fresh = work_dir().join(format!("{name}.{}", std::process::id()));
    let out = Command::new(cc)
        .current_dir(&sources)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"])
        // Bad arguments are given on purpose.
        .args(["-Wno-nonnull", "-Wno-stringop-overflow", "-Wno-stringop-overread"])
        .args(options)
        .arg("-o")
        .arg(&fresh)
        .args(files)
        .output()
        .with_context(|| format!("{cc} is not installed"))?;
    ensure!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    std::fs::rename(&fresh, &program)?;
    std::fs::write(&note, how)?;
    made.push(program.clone());
    Ok(program)
}

/// Whether the program is newer than its files, all headers, and this test, which says how it is compiled.
fn is_made(program: &Path, sources: &Path, files: &[&str]) -> Result<bool> {
    let time = |path: &Path| path.metadata()?.modified();
    let Ok(made) = time(program) else { return Ok(false) };
    let headers = sources.read_dir()?.filter_map(|e| Some(e.ok()?.path()));
    let mut all: Vec<_> = headers.filter(|p| p.extension().is_some_and(|e| e == "h")).collect();
    all.extend(files.iter().map(|file| sources.join(file)));
    all.push(std::env::current_exe()?);
    for path in all {
        if time(&path)? >= made {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Case {
    /// Generous; `SMCR_TESTS_DEADLINE` (seconds) shortens it for those who look for hangs.
    fn deadline(&self) -> Duration {
        let wanted = std::env::var("SMCR_TESTS_DEADLINE").ok().and_then(|s| s.parse().ok());
        Duration::from_secs(wanted.unwrap_or(if self.slow { 120 } else { 40 }))
    }

    /// Runs it once, in a namespace of its own.
    pub fn run(&self, ends: Ends) -> Result<Outcome> {
        self.run_with(ends, &|program| program)
    }

    /// The same; `prepare` changes how each end is started.
    pub fn run_with(&self, ends: Ends, prepare: &dyn for<'a> Fn(Program<'a>) -> Program<'a>) -> Result<Outcome> {
        self.run_fully(ends, &[], prepare)
    }

    /// The same, each end started by another program: `before` and then the case's own line.
    pub fn run_through(&self, ends: Ends, before: &[&OsStr]) -> Result<Outcome> {
        self.run_fully(ends, before, &|program| program)
    }

    fn run_fully(&self, ends: Ends, before: &[&OsStr], prepare: &dyn for<'a> Fn(Program<'a>) -> Program<'a>) -> Result<Outcome> {
        let net = Net::new()?;
        let (for_a, for_b) = UnixStream::pair()?;
        let lo_before = net.lo()?;
        let start = |side: &str, ctl: UnixStream| {
            let load = ends.of(side == "a");
            let is_script = self.program.extension().is_some_and(|e| e == "py");
            let interpreter = is_script.then(python).transpose()?;
            let mut line: Vec<&OsStr> = before.to_vec();
            line.extend(interpreter.as_ref().map(|p| p.as_os_str()));
            line.push(self.program.as_os_str());
            prepare(Program::new(&net, load, line[0]))
                .args(&line[1..])
                .args([self.name.as_str(), side])
                .fd(ctl.into(), 3)
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .start()
        };
        let a = start("a", for_a)?;
        let b = start("b", for_b)?;
        let b = b.wait(self.deadline()).with_context(|| format!("a: {:?}", a.so_far()));
        let (b, a) = (b?, a.wait(self.deadline())?);
        let lo = net.lo()? - lo_before;

        let mut outcome = Outcome { transcript: String::new(), warm: Vec::new(), payload: 0, flips: None, memory: None, lo, notes: String::new() };
        for (end, side) in [(&a, "a"), (&b, "b")] {
            for line in end.out.lines() {
                outcome.transcript += &format!("{side}: {line}\n");
            }
            outcome.transcript += &format!("{side}: {}\n", end.how());
            for line in end.err.lines() {
                let words: Vec<_> = line.split_whitespace().collect();
                match words[..] {
                    ["#warm", payload, lo] => {
                        outcome.warm.push((payload.parse()?, lo.parse()?));
                        outcome.payload += payload.parse::<u64>()?;
                    }
                    ["#memory", n] => *outcome.memory.get_or_insert(0) += n.parse::<u64>()?,
                    ["#flips", n] => *outcome.flips.get_or_insert(0) += n.parse::<u64>()?,
                    ["#payload", n] => outcome.payload += n.parse::<u64>()?,
                    _ => outcome.notes += &format!("{side}: {line}\n"),
                }
            }
        }
        Ok(outcome)
    }

    /// Runs it natively and in all combinations, and compares.
    pub fn check(&self) -> Result<()> {
        self.check_fully(&|program| program, flip_mean())
    }

    /// The same; `prepare` changes how each end is started.
    pub fn check_with(&self, prepare: &(dyn for<'a> Fn(Program<'a>) -> Program<'a> + Sync)) -> Result<()> {
        self.check_fully(prepare, None)
    }

    /// `flips`: with so many bytes in between, if connections are to flip.
    fn check_fully(&self, prepare: &(dyn for<'a> Fn(Program<'a>) -> Program<'a> + Sync), flips: Option<u64>) -> Result<()> {
        // Those that take long do so asleep: all of their runs go at once.
        let mut at_once = Vec::new();
        if self.slow {
            at_once = std::thread::scope(|scope| {
                let all = [Ends::Neither, Ends::Both, Ends::ListenerOnly, Ends::ConnectorOnly];
                let runs = all.map(|ends| scope.spawn(move || self.run_with(ends, prepare)));
                runs.into_iter().map(|run| run.join().unwrap_or_else(|_| bail!("it panicked"))).rev().collect()
            });
        }
        let mut run = |ends| at_once.pop().unwrap_or_else(|| self.run_with(ends, prepare));
        let native = run(Ends::Neither).context("natively")?;
        self.ensure_sound(&native)?;
        let combinations: &[Ends] = if flipping() { &[Ends::Both] } else { &[Ends::Both, Ends::ListenerOnly, Ends::ConnectorOnly] };
        for &ends in combinations {
            let got = run(ends).with_context(|| format!("library: {ends:?}"))?;
            if got.transcript != native.transcript {
                bail!("library: {ends:?}: another transcript\n{}{}", differences(&native.transcript, &got.transcript), got.notes);
            }
            if ends == Ends::Both && (!self.cold || self.whole) && !flipping() {
                self.ensure_accelerated(&got)?;
            }
            if ends == Ends::Both && self.switches {
                ensure!(got.memory.unwrap_or(0) > 0, "nothing went to memory: {:?}\n{}", got.memory, got.notes);
            }
            // Where the warm-up alone is much. A cold one may be to stay on TCP.
            let warm: u64 = got.warm.iter().map(|(payload, _)| payload).sum();
            if !self.cold && got.flips.is_some() && flips.is_some_and(|mean| warm >= 32 * mean) {
                ensure_flipped(&got).context("flips")?;
            }
        }
        Ok(())
    }

    /// Runs it natively and with the library on both ends, with connections that move as `flip` says (`SMCR_FLIP`), and compares.
    pub fn check_flipping(&self, flip: &str) -> Result<()> {
        let native = self.run(Ends::Neither).context("natively")?;
        self.ensure_sound(&native)?;
        // Where they hardly get to memory on a busy machine, they get another chance; other bytes never do.
        let mut flips = Vec::new();
        for _ in 0..5 {
            let got = self.run_with(Ends::Both, &|program| program.env("SMCR_FLIP", flip)).context("flipping")?;
            ensure!(
                got.transcript == native.transcript,
                "flipping: another transcript\n{}{}",
                differences(&native.transcript, &got.transcript),
                got.notes
            );
            flips.push(got.flips);
            // The cold ones have few bytes, which are enough for one.
            if self.cold && got.flips > Some(0) || ensure_flipped(&got).is_ok() {
                println!("{}: {flips:?} flips", self.name);
                return Ok(());
            }
        }
        bail!("hardly any flips: {flips:?}")
    }

    /// Whether this is the name, PROGRAM::CASE.
    pub fn is_called(&self, name: &str) -> bool {
        let program = self.program.file_stem().and_then(|s| s.to_str());
        program.is_some_and(|program| name == format!("{program}::{}", self.name))
    }

    /// For a difference that is known: there must be one with the library at both ends, and both ends must end.
    pub fn check_known(&self) -> Result<()> {
        let native = self.run(Ends::Neither)?;
        self.ensure_sound(&native)?;
        let got = self.run_with(Ends::Both, &|program| program.env("SMCR_FLIP", "0"))?; // on TCP there is none
        ensure!(got.transcript != native.transcript, "no difference any more");
        let differences = differences(&native.transcript, &got.transcript);
        println!("{}: known difference:\n{differences}", self.name);
        Ok(())
    }

    /// The native run itself must have come to its end.
    pub fn ensure_sound(&self, native: &Outcome) -> Result<()> {
        let text = &native.transcript;
        ensure!(!text.contains(": DIED"), "natively:\n{text}{}", native.notes);
        ensure!(!text.contains(": exit 9"), "natively:\n{text}{}", native.notes);
        ensure!(self.cold || !native.warm.is_empty(), "no warm-up:\n{text}");
        Ok(())
    }

    /// The warm-ups left TCP, and all payload where that is asked for.
    pub fn ensure_accelerated(&self, got: &Outcome) -> Result<()> {
        for &(payload, lo) in &got.warm {
            Share { payload, lo: Lo { bytes: lo, packets: 0 } }.ensure_off_tcp("warm-up")?;
        }
        if self.whole {
            Share { payload: got.payload, lo: got.lo }.ensure_off_tcp("whole case")?;
        }
        Ok(())
    }
}

/// Connections went to memory and back more than once or twice.
fn ensure_flipped(got: &Outcome) -> Result<()> {
    ensure!(got.flips.unwrap_or(0) > 2, "{:?} flips\n{}", got.flips, got.notes);
    Ok(())
}

/// The lines in which two transcripts differ, with what both have left out.
fn differences(native: &str, got: &str) -> String {
    let (want, have): (Vec<_>, Vec<_>) = (native.lines().collect(), got.lines().collect());
    let same = want.iter().zip(&have).take_while(|(a, b)| a == b).count();
    let around = same.saturating_sub(3);
    let mut text = String::new();
    for (title, lines) in [("natively", &want), ("library", &have)] {
        text += &format!("--- {title} (from line {})\n", around + 1);
        for line in lines.iter().skip(around).take(25) {
            text += line;
            text += "\n";
        }
    }
    text
}
