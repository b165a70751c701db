//! Options of the commands that change and show settings.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Whose settings; root's default is the host, everybody else's the user.
#[derive(Args, Clone, Copy)]
pub struct Whose {
    /// The settings of the host (root only)
    #[arg(long, conflicts_with = "user")]
    pub host: bool,
    /// The settings of the calling user
    #[arg(long)]
    pub user: bool,
}

/// Which settings are changed, and where.
#[derive(Args, Clone, Copy)]
pub struct Scope {
    #[command(flatten)]
    pub whose: Whose,
    /// Now only; the configuration file stays as it is
    #[arg(long)]
    pub runtime: bool,
}

impl From<Whose> for Scope {
    fn from(whose: Whose) -> Scope {
        Scope { whose, runtime: false }
    }
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
        whose: Whose,
    },
}

#[derive(Subcommand)]
pub enum Rules {
    /// Add a rule behind the others
    #[command(
        after_help = "Words: use=smcr|tcp program=GLOB role=client|server uid=N addr=PREFIX port=RANGE\nThe first rule that agrees with a connection decides; use= must be given."
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
        whose: Whose,
    },
}

#[derive(Args)]
pub struct SetArgs {
    /// ATTRIBUTE=VALUE, or profile=NAME; get --describe lists
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
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Look for mistakes in the configuration files, or in one
    Check { file: Option<PathBuf> },
    /// Load the configuration file into the control page
    Apply {
        #[command(flatten)]
        whose: Whose,
    },
}

#[derive(Subcommand)]
pub enum Ueid {
    /// Print one a line
    Show {
        #[command(flatten)]
        whose: Whose,
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
