//! The commands enable-unit and disable-unit: a systemd drop-in that loads the library.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::cli::UnitArgs;
use crate::fail::usage;
use crate::paths::Places;
use crate::store::replace_file;
use crate::{library, out, program, run};

const FILE: &str = "50-smcr.conf";

pub fn enable(places: &Places, args: &UnitArgs) -> anyhow::Result<()> {
    let unit = name(&args.unit)?;
    let profile = args.profile.as_deref().map(run::profile).transpose()?;
    must_exist(args, &unit)?;
    let library = library::find()?;
    let old = property(args, &unit, "Environment").unwrap_or_default();
    let old = old.split(' ').find_map(|w| w.trim_matches('"').strip_prefix("LD_PRELOAD="));
    let preload = library::preload(&library, old.map(std::ffi::OsStr::new));
    let mut text = String::from("# Made by smcrctl enable-unit; smcrctl disable-unit removes it.\n[Service]\n");
    text += &format!("Environment=LD_PRELOAD={}\n", preload.to_string_lossy().replace('%', "%%"));
    for (name, value) in run::variables(profile, false) {
        text += &format!("Environment={name}={value}\n");
    }
    warn_about_program(args, &unit)?;
    let path = drop_in(places, args, &unit)?;
    let before = std::fs::read_to_string(&path).ok();
    replace_file(&path, &text)?;
    if let Err(error) = reload(args) {
        put_back(&path, before.as_deref())?;
        return Err(error);
    }
    warn_about_sandbox(args, &unit);
    warn_about_place(args, &unit, &library);
    out::print(&format!("wrote {}; it takes effect when {unit} is started next\n", path.display()))
}

pub fn disable(places: &Places, args: &UnitArgs) -> anyhow::Result<()> {
    let unit = name(&args.unit)?;
    let path = drop_in(places, args, &unit)?;
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            bail!("{unit} is not enabled: no {}", path.display())
        }
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
    };
    put_back(&path, None)?;
    if let Err(error) = reload(args) {
        put_back(&path, Some(&before))?;
        return Err(error);
    }
    out::print(&format!("removed {}; it takes effect when {unit} is started next\n", path.display()))
}

/// Makes the drop-in say what it said, or removes it.
fn put_back(path: &Path, text: Option<&str>) -> anyhow::Result<()> {
    if let Some(text) = text {
        return replace_file(path, text);
    }
    std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    if let Some(dir) = path.parent() {
        // Other drop-ins may be in there.
        let _ = std::fs::remove_dir(dir);
    }
    Ok(())
}

/// Refuses a unit that systemd does not know.
fn must_exist(args: &UnitArgs, unit: &str) -> anyhow::Result<()> {
    if args.no_reload {
        return Ok(());
    }
    match property(args, unit, "LoadState").as_deref() {
        None => bail!("systemd does not answer about {unit}; use --no-reload where it does not run"),
        Some("not-found") => bail!("no unit {unit}; systemctl list-unit-files shows what there is"),
        Some(_) => Ok(()),
    }
}

/// The unit's full name, which becomes part of a path.
fn name(given: &str) -> anyhow::Result<String> {
    let good = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if given.is_empty() || given.starts_with('.') || !given.chars().all(good) {
        return Err(usage(format!("`{given}`: not the name of a unit, such as redis-server.service")));
    }
    match given.rsplit_once('.') {
        Some((_, "service")) => Ok(given.to_string()),
        Some((_, "socket" | "target" | "timer" | "mount" | "slice" | "scope" | "path")) => {
            Err(usage(format!("`{given}`: only services have programs to accelerate")))
        }
        _ => Ok(format!("{given}.service")),
    }
}

fn drop_in(places: &Places, args: &UnitArgs, unit: &str) -> anyhow::Result<PathBuf> {
    let units = if args.user {
        let config = places.config(crate::paths::Owner::User)?;
        let base = config.parent().and_then(|p| p.parent());
        base.context("no directory for configuration")?.join("systemd/user")
    } else {
        places.of_host("/etc/systemd/system")
    };
    Ok(units.join(format!("{unit}.d")).join(FILE))
}

/// Says if the unit's program cannot have the library, and refuses then.
fn warn_about_program(args: &UnitArgs, unit: &str) -> anyhow::Result<()> {
    let Some(start) = property(args, unit, "ExecStart") else {
        return Ok(());
    };
    let Some(path) = start.split(' ').find_map(|w| w.strip_prefix("path=")) else {
        return Ok(());
    };
    match program::inspect(Path::new(path)) {
        Ok(report) => match report.obstacles.first() {
            Some(o) => bail!("{} cannot be accelerated: {}; {}", report.file.display(), o.why, o.mend),
            None => Ok(()),
        },
        Err(error) => {
            out::note(&format!("note: {error:#}"));
            Ok(())
        }
    }
}

/// The library finds its peers through netlink and Unix sockets.
fn warn_about_sandbox(args: &UnitArgs, unit: &str) {
    let Some(families) = property(args, unit, "RestrictAddressFamilies") else {
        return;
    };
    if families.is_empty() || families == "none" {
        return;
    }
    let denied = families.strip_prefix('~');
    let lists = |family: &str| families.trim_start_matches('~').split(' ').any(|w| w == family);
    // Processes find each other over AF_UNIX; of the two ends the one that connects asks netlink.
    let concerned = [("AF_UNIX", "its connections"), ("AF_NETLINK", "connections that it makes")]
        .into_iter()
        .find(|(family, _)| lists(family) == denied.is_some());
    if let Some((family, which)) = concerned {
        out::note(&format!("note: {unit} may not use {family}; {which} stay on TCP until RestrictAddressFamilies= allows it"));
    }
}

/// The unit's own view of the files may be without the library.
fn warn_about_place(args: &UnitArgs, unit: &str, library: &Path) {
    let says = |name: &str| property(args, unit, name).is_some_and(|value| !["", "no", "read-only"].contains(&&*value));
    let hidden = HIDDEN.iter().find(|(name, dirs)| dirs.iter().any(|dir| library.starts_with(dir)) && says(name));
    if let Some((name, _)) = hidden {
        out::note(&format!(
            "note: {unit} cannot see {} ({name}=); put the library elsewhere, as the package does, or all its connections stay on TCP",
            library.display()
        ));
    } else if may_not_execute(args, unit, library) {
        out::note(&format!(
            "note: {unit} cannot load {0} (NoExecPaths=), and all its connections stay on TCP; put it where the package does, or say ExecPaths={0} in `systemctl edit {unit}`",
            library.display()
        ));
    }
}

/// Whether the unit's NoExecPaths= hold for the library, and no ExecPaths= further down.
fn may_not_execute(args: &UnitArgs, unit: &str, library: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let library = real(library);
    let depth = |name: &str| {
        let paths = property(args, unit, name).unwrap_or_default();
        let above = paths.split_whitespace().map(|path| real(Path::new(path.trim_start_matches(['-', '+']))));
        above.filter(|path| library.starts_with(path)).map(|path| path.components().count()).max()
    };
    depth("NoExecPaths") > depth("ExecPaths")
}

/// Settings of a unit that give it other directories in the place of these.
const HIDDEN: [(&str, &[&str]); 2] = [("ProtectHome", &["/home", "/root", "/run/user"]), ("PrivateTmp", &["/tmp", "/var/tmp"])];

/// A property of the unit; none where systemd does not run or does not know it.
fn property(args: &UnitArgs, unit: &str, property: &str) -> Option<String> {
    if args.no_reload {
        return None;
    }
    let mut command = systemctl(args);
    command.args(["show", "--value", "-p", property, "--", unit]);
    let output = command.stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}

fn reload(args: &UnitArgs) -> anyhow::Result<()> {
    if args.no_reload {
        return Ok(());
    }
    let output = systemctl(args).arg("daemon-reload").output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => bail!(
            "systemctl daemon-reload failed, so nothing is changed: {}; use --no-reload where systemd does not run",
            String::from_utf8_lossy(&output.stderr).trim()
        ),
        Err(error) => bail!("systemctl cannot be started, so nothing is changed: {error}; use --no-reload where systemd does not run"),
    }
}

fn systemctl(args: &UnitArgs) -> Command {
    let mut command = Command::new("systemctl");
    if args.user {
        command.arg("--user");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn names_of_units() {
        assert_eq!(name("redis-server").unwrap(), "redis-server.service");
        assert_eq!(name("a@b.service").unwrap(), "a@b.service");
        assert_eq!(name("my.app").unwrap(), "my.app.service");
        for bad in ["", "../x", "a/b", "ssh.socket", ".service"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }
}
