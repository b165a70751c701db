//! The command check: findings about this machine, the way to a peer, or a program.

mod diag;
mod limits;
mod machine;
mod peer;
mod rdma;

use serde::Serialize;

use crate::cli::CheckArgs;
use crate::fail::Silent;
use crate::out::{self, Colour};
use crate::paths::Places;
use crate::program;

/// How good a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    Good,
    /// Worth knowing; nothing is wrong.
    Info,
    /// Something is in the way.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Serialize)]
pub struct Finding {
    grade: Grade,
    what: String,
    text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    mend: String,
}

impl Finding {
    fn new(grade: Grade, what: &str, text: impl Into<String>) -> Finding {
        Finding { grade, what: what.into(), text: text.into(), mend: String::new() }
    }

    fn mend(mut self, mend: &str) -> Finding {
        self.mend = mend.into();
        self
    }
}

pub fn run(places: &Places, args: &CheckArgs) -> anyhow::Result<()> {
    let findings = match (&args.program, &args.peer) {
        (Some(path), _) => check_program(&program::resolve(path)?)?,
        (None, Some(peer)) => peer::check(places, peer)?,
        (None, None) => [machine::check(places), rdma::check(places)].concat(),
    };
    if args.json {
        out::json(&findings)?;
    } else {
        out::print(&as_text(&findings))?;
    }
    if findings.iter().any(|f| f.grade == Grade::Bad) {
        return Err(Silent.into());
    }
    Ok(())
}

fn check_program(path: &std::path::Path) -> anyhow::Result<Vec<Finding>> {
    let report = program::inspect(path)?;
    let mut findings = Vec::new();
    for obstacle in &report.obstacles {
        findings.push(Finding::new(Grade::Bad, "program", obstacle.why).mend(obstacle.mend));
    }
    if report.obstacles.is_empty() {
        let text = format!("{} can have the library", report.file.display());
        findings.push(Finding::new(Grade::Good, "program", text));
    }
    let remarks = report.remarks.iter();
    findings.extend(remarks.map(|r| Finding::new(Grade::Info, "remark", r.as_str())));
    Ok(findings)
}

fn as_text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|f| f.what.len()).max().unwrap_or(0);
    let mut text = String::new();
    for f in findings {
        let mark = match f.grade {
            Grade::Good => out::paint(Colour::Good, "ok  "),
            Grade::Info => out::paint(Colour::Dim, "info"),
            Grade::Bad => out::paint(Colour::Bad, "bad "),
        };
        text += &format!("{mark}  {:width$}  {}\n", f.what, f.text);
        if !f.mend.is_empty() {
            text += &format!("      {:width$}  what to change: {}\n", "", f.mend);
        }
    }
    text
}
