//! Options of the commands that look at processes and connections, and of drain.

use std::net::IpAddr;

use clap::{Args, ValueEnum};

use super::Whose;

#[derive(Args)]
pub struct StatsArgs {
    /// By transport, link group, size, reason, user, process
    #[arg(short, long)]
    pub detail: bool,
    /// Count from now on, for this user alone
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
    /// Print JSON
    #[arg(long, conflicts_with = "prometheus")]
    pub json: bool,
    /// Print Prometheus' text format, a series per process
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
    /// Only programs of this name (*, ? match)
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
    /// Print JSON
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
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ExplainArgs {
    /// PID, PID/FD, reason (pid:N, code:N); none lists reasons
    pub what: Option<String>,
}

#[derive(Args)]
pub struct DrainArgs {
    /// PID, PORT (or pid:N, port:N) or all
    #[arg(default_value = "all")]
    pub target: String,
    /// Seconds to wait for the connections
    #[arg(long, default_value_t = 10)]
    pub timeout: u32,
    /// Do not wait
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub whose: Whose,
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
