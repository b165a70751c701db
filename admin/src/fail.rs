//! How a command fails: one line on standard error and an exit status. Used by every command.

use std::{fmt, io};

use clap::CommandFactory;

use crate::cli::Cli;

/// A mistake of the caller: exit status 2, everything else is 1.
#[derive(Debug)]
pub struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The error that the caller made this mistake.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(message.into()))
}

/// A result that was already printed: only the exit status is left to be set.
#[derive(Debug)]
pub struct Silent;

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Silent {}

/// The exit status for an error, and the line to print with it if there is one.
pub fn report(error: &anyhow::Error) -> (u8, Option<String>) {
    let broken_pipe = error.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe);
    if broken_pipe {
        // The reader of our output has seen enough.
        return (0, None);
    }
    if error.is::<Silent>() {
        return (1, None);
    }
    let line = format!("{error:#}").replace('\n', " ") + mend(error);
    (if error.is::<Usage>() { 2 } else { 1 }, Some(line))
}

/// What to do about what the system refused, where nobody has said it yet.
fn mend(error: &anyhow::Error) -> &'static str {
    let Some(refused) = error.chain().find_map(|e| e.downcast_ref::<io::Error>()) else {
        return "";
    };
    match refused.kind() {
        io::ErrorKind::PermissionDenied => "; look at its owner and mode, or run smcrctl as root",
        io::ErrorKind::NotFound => "; check the path",
        io::ErrorKind::StorageFull => "; make room on the file system",
        io::ErrorKind::ReadOnlyFilesystem => "; the file system is mounted read-only",
        _ => "",
    }
}

/// The one line that a mistake on the command line deserves.
pub fn command_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let told = text
        .lines()
        .take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more information"))
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let told = told.strip_prefix("error: ").unwrap_or(&told);
    let usage = text.lines().find_map(|l| l.strip_prefix("Usage: "));
    match usage {
        Some(usage) => format!("{told}; usage: {usage}"),
        None => format!("{told}; see smcrctl {}--help", called()),
    }
}

/// The command that was called, if there is such a one, and a blank.
fn called() -> String {
    let known = Cli::command();
    // What is no text is no command.
    let mut words = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
    let command = words.find(|word| known.find_subcommand(word).is_some());
    command.map_or(String::new(), |word| word + " ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn what_the_system_refused_has_a_mend() {
        let of = |kind: io::ErrorKind| {
            let error = Err::<(), _>(io::Error::from(kind)).context("cannot read x").unwrap_err();
            report(&error)
        };
        let (status, line) = of(io::ErrorKind::PermissionDenied);
        assert_eq!(status, 1);
        assert_eq!(line.unwrap(), "cannot read x: permission denied; look at its owner and mode, or run smcrctl as root");
        assert!(of(io::ErrorKind::NotFound).1.unwrap().ends_with("; check the path"));
        assert_eq!(of(io::ErrorKind::BrokenPipe), (0, None));
        assert_eq!(report(&usage("no")), (2, Some("no".into())));
    }
}
