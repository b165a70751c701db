//! smcrctl: switches, restricts, explains and measures smcr.
//!
//! Reads the command line (`cli`), calls the module of the command, and turns an error into one
//! line and an exit status (`fail`). From the outside in:
//! - settings: `settings`, `ports`, `config_command` over `effective`, `config`, `interfaces`, `store`, `mapping`;
//! - observation: `sock`, `stats`, `top`, `explain`, `drain`, `linkgroup` over `totals`, `baseline`,
//!   `scan`, `family`, `procfs`;
//! - programs and machine: `run`, `unit`, `check`, `bench`, `device` over `program`, `library`, `inherited`;
//! - everywhere: `paths`, `out`.

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

mod baseline;
mod bench;
mod check;
mod cli;
mod config;
mod config_command;
mod detail;
mod device;
mod drain;
mod effective;
mod explain;
mod fail;
mod family;
mod generate;
mod handshake;
mod inherited;
mod interfaces;
mod library;
mod linkgroup;
mod manual;
mod mapping;
mod out;
mod paths;
mod ports;
mod procfs;
mod program;
mod prometheus;
mod run;
mod scan;
mod settings;
mod sock;
mod stats;
mod store;
mod top;
mod totals;
mod unit;
mod wake;

use cli::{Cli, Command};
use paths::Places;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return told(&error),
    };
    match dispatch(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let (status, line) = fail::report(&error);
            if let Some(line) = line {
                out::note(&format!("smcrctl: {line}"));
            }
            ExitCode::from(status)
        }
    }
}

fn dispatch(cli: &Cli) -> anyhow::Result<()> {
    let places = &Places::new(cli.root.clone());
    match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Enable(scope) => settings::enable(places, *scope, true),
        Command::Disable(scope) => settings::enable(places, *scope, false),
        Command::PortRange(command) => settings::port_range(places, command),
        Command::Rule(command) => settings::rule(places, command),
        Command::Set(args) => settings::set(places, args),
        Command::Unset(args) => settings::unset(places, args),
        Command::Get(args) => config_command::get(places, args),
        Command::Config(command) => config_command::config(places, command),
        Command::Stats(args) => stats::run(places, args),
        Command::Sock(args) => sock::run(args),
        Command::Linkgroup(args) => linkgroup::run(args),
        Command::Device(args) => device::run(places, args),
        Command::Ueid(command) => settings::ueid(places, command),
        Command::Explain(args) => explain::run(places, args),
        Command::Check(args) => check::run(places, args),
        Command::Drain(args) => drain::run(places, args),
        Command::Top(args) => top::run(args),
        Command::Bench(args) => bench::run(args),
        Command::EnableUnit(args) => unit::enable(places, args),
        Command::DisableUnit(args) => unit::disable(places, args),
        Command::Completions { shell } => generate::completions(*shell),
        Command::Man { dir } => generate::man(dir),
        Command::Node(node) => bench::run_node(node),
    }
}

/// Help and version as clap shows them, mistakes in one line.
fn told(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            out::note(&format!("smcrctl: {}", fail::command_line(error)));
            ExitCode::from(2)
        }
    }
}
