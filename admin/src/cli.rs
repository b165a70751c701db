//! The command line: every subcommand, option and help text, from which man pages and shell
//! completions are generated too. Called by `main`.

mod observation;
mod programs;
mod settings;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub use observation::*;
pub use programs::*;
pub use settings::*;

pub const EXIT_HELP: &str = "Exit status: 0 success, 1 failure, 2 wrong usage.";

/// Switches, restricts, explains and measures smcr, which makes TCP programs faster.
#[derive(Parser)]
#[command(name = "smcrctl", version, max_term_width = 100, after_help = EXIT_HELP)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// Use the host's files below DIR instead of / (for images and tests)
    #[arg(long, global = true, value_name = "DIR", hide_short_help = true)]
    pub root: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start a program with the library
    Run(RunArgs),
    /// Switch acceleration on for new connections of running and new processes
    Enable(Scope),
    /// Switch acceleration off for new connections (drain moves the live ones)
    Disable(Scope),
    /// The ports that may be accelerated; an empty list means every port
    #[command(subcommand)]
    PortRange(PortRange),
    /// Rules by program, role, user, address and port, asked before the lists
    #[command(subcommand)]
    Rule(Rules),
    /// Set attributes, now and in the configuration file
    Set(SetArgs),
    /// Leave attributes to the host's settings or the defaults again
    Unset(UnsetArgs),
    /// Show attributes
    Get(GetArgs),
    /// Show, check and load the configuration
    #[command(subcommand)]
    Config(Config),
    /// Counters of the processes that have the library loaded
    Stats(StatsArgs),
    /// Connections, as ss shows sockets
    Sock(SockArgs),
    /// RDMA link groups
    Linkgroup(Json),
    /// RDMA devices of this machine
    Device(Json),
    /// User EIDs, by which SMC-Rv2 hosts find that they belong together
    #[command(subcommand)]
    Ueid(Ueid),
    /// Why is this connection on TCP?
    Explain(ExplainArgs),
    /// Test this machine, the way to a peer, or a program
    Check(CheckArgs),
    /// Move live connections back to TCP
    Drain(DrainArgs),
    /// Live view of the processes
    Top(TopArgs),
    /// Measure TCP against smcr
    Bench(BenchArgs),
    /// Start a systemd unit with the library from its next start on
    EnableUnit(UnitArgs),
    /// Undo enable-unit
    DisableUnit(UnitArgs),
    /// Print the completions of a shell
    Completions { shell: clap_complete::Shell },
    /// Write the man pages into a directory
    Man { dir: PathBuf },
    /// One end of a measurement (started by bench and check)
    #[command(hide = true, subcommand)]
    Node(Node),
}
