//! Options of the commands that start, test and measure programs.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args)]
pub struct RunArgs {
    /// Values for a purpose: safe, latency, throughput or cpu
    #[arg(long, value_name = "P")]
    pub profile: Option<String>,
    /// Reset connections that should have left TCP and did not
    #[arg(long)]
    pub strict: bool,
    /// Start the program without the library if it cannot have it
    #[arg(long)]
    pub or_plain: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<std::ffi::OsString>,
}

#[derive(Args)]
pub struct CheckArgs {
    /// HOST or HOST:PORT; none = this machine
    #[arg(conflicts_with = "program")]
    pub peer: Option<String>,
    /// Will this program be accelerated?
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct BenchArgs {
    /// HOST[:PORT] of `smcrctl bench --listen`; none = this one
    #[arg(conflicts_with = "listen")]
    pub peer: Option<String>,
    /// Be the other end, at [::]:7609 or here
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "[::]:7609")]
    pub listen: Option<SocketAddr>,
    /// Seconds for each measurement
    #[arg(short, long, default_value_t = 2.0, value_name = "SECONDS")]
    pub time: f64,
    /// Bytes of a message of the ping-pong
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1048576))]
    pub ping_size: u32,
    /// Bytes of a write of the stream
    #[arg(long, value_name = "N", default_value_t = 65536, value_parser = clap::value_parser!(u32).range(1..=16777216))]
    pub stream_size: u32,
    /// Print JSON
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
    /// Prints whether a library of this name is in this process
    Loaded { name: String },
}
