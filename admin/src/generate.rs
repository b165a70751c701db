//! Completions and man pages, made from the command line's own description.

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::Cli;
use crate::out;

pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "smcrctl", &mut text);
    out::print(&String::from_utf8(text)?)
}

/// One page for smcrctl and one for each subcommand.
pub fn man(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .with_context(|| format!("cannot write man pages into {}", dir.display()))
}
