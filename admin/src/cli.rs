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

const EXIT_HELP: &str = "Exit status: 0 success, 1 failure, 2 wrong usage.  More: smcrctl COMMAND --help";
/// All of it on a screen of 24 lines.
const TEMPLATE: &str = "{about}: {usage}\n{subcommands}{after-help}";

/// Switches, restricts, explains and measures smcr
#[derive(Parser)]
#[command(name = "smcrctl", version, max_term_width = 100)]
#[command(after_help = EXIT_HELP, help_template = TEMPLATE)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// Use the host's files below DIR instead of / (for images and tests)
    #[arg(long, global = true, value_name = "DIR", hide = true)]
    pub root: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Start a program with the library
    Run(RunArgs),
    /// Accelerate new connections, of running processes too
    #[command(after_help = "As root also between hosts: pins the eBPF programs (docs/operating.md).")]
    Enable(Scope),
    /// Leave new connections on TCP (drain moves the live ones)
    #[command(after_help = "As root also between hosts: removes the eBPF programs.")]
    Disable(Scope),
    /// Ports that may be accelerated; an empty list means every port
    #[command(subcommand)]
    PortRange(PortRange),
    /// Rules by program, role, user, address and port
    #[command(subcommand)]
    Rule(Rules),
    /// Set attributes, now and in the configuration file
    Set(SetArgs),
    /// Leave attributes to the host's settings or the defaults
    Unset(UnsetArgs),
    /// Show attributes
    Get(GetArgs),
    /// Show, check and load the configuration
    #[command(subcommand)]
    Config(Config),
    /// Counters of the processes that have the library
    Stats(StatsArgs),
    /// Connections, as ss shows sockets
    Sock(SockArgs),
    /// RDMA link groups
    Linkgroup(Json),
    /// RDMA devices of this machine
    Device(Json),
    /// User EIDs, by which SMC-Rv2 hosts know each other
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
    /// Give a systemd unit the library, from its next start on
    EnableUnit(UnitArgs),
    /// Undo enable-unit
    DisableUnit(UnitArgs),
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions { shell: clap_complete::Shell },
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man { dir: PathBuf },
    /// One end of a measurement (started by bench and check)
    #[command(name = "__node", hide = true, subcommand)]
    Node(Node),
}
