//! The command run: starts a program with the library in front of what it would load.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::bail;
use smcr_proto::control::Profile;

use crate::cli::RunArgs;
use crate::fail::usage;
use crate::{config, inherited, library, out, program};

pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let profile = args.profile.as_deref().map(profile).transpose()?;
    let Some((name, rest)) = args.command.split_first() else {
        return Err(usage("no program given; write smcrctl run -- PROGRAM ARGUMENTS"));
    };
    let path = program::resolve(Path::new(name))?;
    let mut command = Command::new(&path);
    command.arg0(name).args(rest);
    match refused(&path) {
        Ok(()) => {
            let library = library::find()?;
            let old = std::env::var_os("LD_PRELOAD");
            command.env("LD_PRELOAD", library::preload(&library, old.as_deref()));
            let own = variables(profile, args.strict).into_iter();
            // A variable that the user has set is stronger than the profile's.
            command.envs(own.filter(|(name, _)| *name == STRICT || std::env::var_os(name).is_none()));
        }
        Err(error) if args.or_plain => out::note(&format!("smcrctl: {error:#}; started without")),
        Err(error) => return Err(error),
    }
    inherited::hand_on(&mut command);
    let error = command.exec();
    bail!("cannot start {}: {error}", path.display())
}

fn refused(path: &Path) -> anyhow::Result<()> {
    let report = program::inspect(path)?;
    match report.obstacles.first() {
        Some(o) => bail!("{} cannot be accelerated: {}; {}", report.file.display(), o.why, o.mend),
        None => Ok(()),
    }
}

const STRICT: &str = "SMCR_STRICT";

/// The environment that stands for a profile.
pub fn variables(profile: Option<&Profile>, strict: bool) -> Vec<(&'static str, &'static str)> {
    let values = profile.map_or(&[][..], |p| p.values).iter();
    let mut variables: Vec<_> = values.filter_map(|(attribute, text)| Some((attribute.environment()?, *text))).collect();
    if strict {
        variables.push((STRICT, "1"));
    }
    variables
}

pub fn profile(name: &str) -> anyhow::Result<&'static Profile> {
    Profile::from_name(name).ok_or_else(|| usage(config::unknown_profile(name)))
}
