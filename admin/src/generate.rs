//! Completions and man pages, made from the command line's own description.

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::Cli;
use crate::{manual, out};

pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "smcrctl", &mut text);
    out::print(&String::from_utf8(text)?)
}

/// One page for smcrctl and one for each subcommand, those of the library and of its settings.
pub fn man(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
        .and_then(|()| manual::pages().iter().try_for_each(|(name, text)| std::fs::write(dir.join(name), text)))
        .with_context(|| format!("cannot write man pages into {}", dir.display()))
}
