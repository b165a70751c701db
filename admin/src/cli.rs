//! The command line: every subcommand, option and help text, from which man pages and shell
//! completions are generated too. Called by `main`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

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

#[derive(Args)]
pub struct RunArgs {
    /// Values for a purpose: safe, latency, throughput or cpu
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// Refuse connections that would stay on TCP
    #[arg(long)]
    pub strict: bool,
    /// Start the program without the library if it cannot have it
    #[arg(long)]
    pub or_plain: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// Whose settings; root's default is the host, everybody else's the user.
#[derive(Args, Clone, Copy)]
pub struct Scope {
    /// The settings of the host (root only)
    #[arg(long, conflicts_with = "user")]
    pub host: bool,
    /// The settings of the calling user
    #[arg(long)]
    pub user: bool,
    /// Until the next start of the machine only: leave the configuration file as it is
    #[arg(long)]
    pub runtime: bool,
}

#[derive(Subcommand)]
pub enum PortRange {
    /// Add ports, such as 23 or 1-20,50
    Add {
        ports: String,
        #[command(flatten)]
        scope: Scope,
    },
    /// Take ports out, also from the middle of a range
    Del {
        ports: String,
        #[command(flatten)]
        scope: Scope,
    },
    /// Print one range a line
    List {
        #[command(flatten)]
        scope: Scope,
    },
}

#[derive(Subcommand)]
pub enum Rules {
    /// Add a rule behind the others
    #[command(
        after_help = "Words: use=smcr|tcp, program=GLOB, role=client|server, uid=N, addr=PREFIX, port=RANGE.\nThe first rule that agrees with a connection decides; use= must be given."
    )]
    Add {
        /// For example: use=tcp program=redis* port=6379
        #[arg(required = true, num_args = 1..)]
        words: Vec<String>,
        /// Put it at this place instead, 1 being the first
        #[arg(long, value_name = "N")]
        at: Option<usize>,
        #[command(flatten)]
        scope: Scope,
    },
    /// Take the rule with this number out
    Del {
        number: usize,
        #[command(flatten)]
        scope: Scope,
    },
    /// Print the rules with their numbers
    List {
        #[command(flatten)]
        scope: Scope,
    },
}

#[derive(Args)]
pub struct SetArgs {
    /// ATTRIBUTE=VALUE (see smcrctl get --describe), or profile=NAME
    #[arg(required = true, value_name = "ATTRIBUTE=VALUE")]
    pub values: Vec<String>,
    #[command(flatten)]
    pub scope: Scope,
}

#[derive(Args)]
pub struct UnsetArgs {
    /// Attributes
    #[arg(required = true)]
    pub attributes: Vec<String>,
    #[command(flatten)]
    pub scope: Scope,
}

#[derive(Args)]
pub struct GetArgs {
    /// Attributes; none = all
    pub attributes: Vec<String>,
    /// Print the values only
    #[arg(short = 'n', long)]
    pub values: bool,
    /// Print form and meaning of the attributes instead
    #[arg(long)]
    pub describe: bool,
}

#[derive(Subcommand)]
pub enum Config {
    /// Print what holds for the programs of this user
    Show {
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
        #[arg(long)]
        json: bool,
    },
    /// Look for mistakes in the configuration files, or in one
    Check { file: Option<PathBuf> },
    /// Load the configuration file into the control page
    Apply {
        #[command(flatten)]
        scope: Scope,
    },
}

#[derive(Args)]
pub struct StatsArgs {
    /// Details: by transport, size, reason, user and process; errors of the handshake
    #[arg(short, long)]
    pub detail: bool,
    /// Count from now on (for this user; the processes are not touched)
    #[arg(short, long, conflicts_with_all = ["absolute", "interval", "prometheus"])]
    pub reset: bool,
    /// Since the start of the processes, whatever was reset
    #[arg(short, long)]
    pub absolute: bool,
    /// Print rates every N seconds
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub interval: Option<u32>,
    /// Stop after COUNT intervals
    #[arg(short, long, requires = "interval", value_name = "COUNT")]
    pub count: Option<u32>,
    #[command(flatten)]
    pub who: Who,
    #[arg(long, conflicts_with = "prometheus")]
    pub json: bool,
    /// Print in Prometheus' text format, one series per process
    #[arg(long, conflicts_with = "interval")]
    pub prometheus: bool,
}

/// Which processes.
#[derive(Args, Clone, Default)]
pub struct Who {
    /// Only this process
    #[arg(short, long)]
    pub pid: Option<u32>,
    /// Only processes of this user number
    #[arg(short, long)]
    pub uid: Option<u32>,
    /// Only programs whose name matches this pattern (*, ?)
    #[arg(long, value_name = "GLOB")]
    pub program: Option<String>,
}

impl Who {
    /// Whether nothing is left out.
    pub fn is_everybody(&self) -> bool {
        self.pid.is_none() && self.uid.is_none() && self.program.is_none()
    }
}

#[derive(Args, Default)]
pub struct SockArgs {
    /// Listening sockets too
    #[arg(short, long)]
    pub all: bool,
    /// Listening sockets only
    #[arg(short, long)]
    pub listening: bool,
    /// Rings, cursors and bytes as well
    #[arg(short, long)]
    pub detail: bool,
    /// Only this mode
    #[arg(short, long)]
    pub mode: Option<Medium>,
    /// Only this state, such as ACCELERATED
    #[arg(short, long)]
    pub state: Option<String>,
    /// Only this reason, by name or number
    #[arg(short, long)]
    pub reason: Option<String>,
    /// Only connections with this local or peer's port
    #[arg(long)]
    pub port: Option<u16>,
    /// Only connections with this local port
    #[arg(long)]
    pub sport: Option<u16>,
    /// Only connections with this peer's port
    #[arg(long)]
    pub dport: Option<u16>,
    /// Only connections with this local or peer's address
    #[arg(long)]
    pub addr: Option<IpAddr>,
    #[command(flatten)]
    pub who: Who,
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Medium {
    Tcp,
    Shm,
    Rdma,
}

#[derive(Args)]
pub struct Json {
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Ueid {
    /// Print one a line
    Show {
        #[command(flatten)]
        scope: Scope,
    },
    /// Add one
    Add {
        eid: String,
        #[command(flatten)]
        scope: Scope,
    },
    /// Take one out
    Del {
        eid: String,
        #[command(flatten)]
        scope: Scope,
    },
    /// Take all out
    Flush {
        #[command(flatten)]
        scope: Scope,
    },
}

#[derive(Args)]
pub struct ExplainArgs {
    /// PID, PID/FD, or the name or number of a reason (pid:N and code:N where both are meant)
    pub what: String,
}

#[derive(Args)]
pub struct CheckArgs {
    /// HOST or HOST:PORT; none = this machine
    #[arg(conflicts_with = "program")]
    pub peer: Option<String>,
    /// Will this program be accelerated?
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct DrainArgs {
    /// PID, PORT or all (pid:N and port:N where both are meant)
    #[arg(default_value = "all")]
    pub target: String,
    /// Seconds to wait for the connections
    #[arg(long, default_value_t = 10)]
    pub timeout: u32,
    /// Do not wait
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub scope: Scope,
}

#[derive(Args)]
pub struct TopArgs {
    /// Seconds between two views
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub interval: u32,
    /// Stop after COUNT views
    #[arg(short, long)]
    pub count: Option<u32>,
    /// Processes to show
    #[arg(long, default_value_t = 20)]
    pub rows: usize,
    #[command(flatten)]
    pub who: Who,
}

#[derive(Args)]
pub struct BenchArgs {
    /// HOST or HOST:PORT where `smcrctl bench --listen` runs; none = this machine
    #[arg(conflicts_with = "listen")]
    pub peer: Option<String>,
    /// Be the other end for a bench elsewhere, at this address [default: [::]:7609]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "[::]:7609")]
    pub listen: Option<SocketAddr>,
    /// Seconds for each measurement
    #[arg(short, long, default_value_t = 2.0, value_name = "SECONDS")]
    pub time: f64,
    /// Bytes of a message of the ping-pong
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1048576))]
    pub ping_size: u32,
    /// Bytes of a write of the stream
    #[arg(long, default_value_t = 65536, value_parser = clap::value_parser!(u32).range(1..=16777216))]
    pub stream_size: u32,
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct UnitArgs {
    /// The unit, such as redis-server or redis-server.service
    pub unit: String,
    /// Values for a purpose: safe, latency, throughput or cpu
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// A unit of the calling user
    #[arg(long)]
    pub user: bool,
    /// Do not ask systemd to read its files again
    #[arg(long)]
    pub no_reload: bool,
}

#[derive(Subcommand)]
pub enum Node {
    /// Answers until its standard input ends
    Server { at: SocketAddr },
    /// Measures and prints one line of JSON
    Client {
        to: SocketAddr,
        /// ping or stream
        kind: String,
        size: u32,
        seconds: f64,
    },
    /// Connects, says nothing, and prints what the library says of the connection
    Probe { to: SocketAddr },
    /// Prints whether the library is in this process
    Loaded,
}
