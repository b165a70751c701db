//! smcrctl where there is no home, or another user's.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use smcr_proto::page::State;

use crate::bed::{Bed, write};
use crate::fake::Fake;

const NOBODY: u32 = 65534;

/// As a service is started, or by cron.
#[test]
fn what_needs_no_home_works_without_one() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Tcp, 1, [0, 0]);
    let pid = fake.pid().to_string();
    let call = |args: &[&str]| {
        let mut command = bed.smcrctl(args);
        for name in ["HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"] {
            command.env_remove(name);
        }
        command.assert()
    };
    call(&["stats", "-p", &pid]).success().stdout(contains("counters since the start"));
    call(&["stats", "-p", &pid, "--json"]).success();
    call(&["config", "check"])
        .success()
        .stdout(contains("root/etc/smcr/smcr.toml: not there"))
        .stderr(contains("note: the settings of the user are left out"));
    write(&bed.path("root/etc/smcr/smcr.toml"), "enabled = 7");
    call(&["config", "check"]).code(1).stderr(contains("line 1: enabled"));
    // Where something is to be kept, a place for it is asked for.
    call(&["stats", "-r", "-p", &pid]).code(1).stderr(contains("set HOME"));
}

/// The file of a reset is smcrctl's own: a link in its place is replaced, and what it leads to stays.
#[test]
fn a_link_in_the_place_of_the_state_is_not_followed() {
    let (bed, fake) = (Bed::new(), Fake::start());
    let kept = bed.path("kept");
    write(&kept, "mine");
    let state = bed.path("state/smcr/stats-baseline.json");
    fs::create_dir_all(state.parent().unwrap()).unwrap();
    symlink(&kept, &state).unwrap();
    let pid = fake.pid().to_string();
    bed.ok(&["stats", "-r", "-p", &pid]);
    assert_eq!(fs::read_to_string(&kept).unwrap(), "mine");
    assert!(fs::symlink_metadata(&state).unwrap().is_file());
    assert!(bed.ok(&["stats", "-p", &pid]).contains("since the last reset"));
    // A configuration file may be a link to where it is kept.
    fs::create_dir_all(bed.config().parent().unwrap()).unwrap();
    write(&kept, "spin_us = 1\n");
    symlink(&kept, bed.config()).unwrap();
    bed.ok(&["set", "--user", "spin_us=2"]);
    assert_eq!(fs::read_to_string(&kept).unwrap(), "spin_us = 2\n");
}

/// Root with a user's HOME (sudo -E) writes nothing there.
#[test]
fn root_keeps_nothing_in_a_users_home() {
    if !nix::unistd::geteuid().is_root() {
        return; // only root may write into others' directories
    }
    let (bed, fake) = (Bed::new(), Fake::start());
    let pid = fake.pid().to_string();
    for name in ["home", "users"] {
        fs::create_dir_all(bed.path(name)).unwrap();
        chown(bed.path(name), Some(NOBODY), None).unwrap();
    }
    let call = |args: &[&str], state: Option<&str>| {
        let mut command = bed.smcrctl(args);
        command.env_remove("XDG_STATE_HOME");
        if let Some(dir) = state {
            command.env("XDG_STATE_HOME", bed.path(dir));
        }
        command.assert().success()
    };
    // Only read: root's own home is not the test's to write to.
    write(&bed.path("home/.local/state/smcr/stats-baseline.json"), "{");
    write(&bed.path("users/smcr/stats-baseline.json"), "{");
    call(&["stats", "-p", &pid, "--json"], None);
    call(&["stats", "-p", &pid, "--json"], Some("users"));
    call(&["stats", "-p", &pid, "-r"], Some("state"));
    let kept = fs::metadata(bed.path("state/smcr/stats-baseline.json")).unwrap();
    assert_eq!(kept.uid(), 0);
}

/// What is the host's is for everybody to read, and what there is keeps its owner and mode, whatever root's umask says.
#[test]
fn a_strict_umask_hides_nothing() {
    let bed = Bed::new();
    let call = |args: &str| {
        let root = bed.path("root");
        let line = format!("umask 077; exec {} --root {} {args}", env!("CARGO_BIN_EXE_smcrctl"), root.display());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &line]).env("HOME", bed.path("home")).env("XDG_RUNTIME_DIR", bed.path("run"));
        assert!(command.env_remove("XDG_CONFIG_HOME").output().unwrap().status.success(), "{args}");
    };
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().mode() & 0o777;
    write(&bed.config(), "spin_us = 1\n");
    fs::set_permissions(bed.config(), fs::Permissions::from_mode(0o644)).unwrap();
    call("set --user spin_us=2");
    assert_eq!(mode(&bed.config()), 0o644);
    assert_eq!(mode(&bed.path("run/smcr")), 0o700);
    if !nix::unistd::geteuid().is_root() {
        return; // the host's are root's
    }
    let of_host = bed.path("root/etc/smcr/smcr.toml");
    write(&of_host, "spin_us = 1\n");
    chown(&of_host, Some(0), Some(NOBODY)).unwrap();
    fs::set_permissions(&of_host, fs::Permissions::from_mode(0o664)).unwrap();
    call("disable --host");
    assert_eq!(mode(&bed.path("root/run/smcr")), 0o755);
    assert_eq!((mode(&of_host), fs::metadata(&of_host).unwrap().gid()), (0o664, NOBODY));
}

/// Root with a user's XDG_RUNTIME_DIR (su, sudo -E): that user's page stays, and root's gets in nobody's way.
#[test]
fn root_leaves_a_users_control_page_alone() {
    if !nix::unistd::geteuid().is_root() {
        return; // only root may write into others' directories
    }
    let bed = Bed::new();
    chown(bed.path("run"), Some(NOBODY), None).unwrap();
    for args in [&["set", "--user", "spin_us=1"][..], &["disable", "--user"], &["config", "apply", "--user"]] {
        let line = bed.fails(args, 1);
        assert!(line.contains("which belongs to another user; unset it, or leave out --user"), "{line}");
    }
    assert!(!bed.path("run/smcr").exists() && !bed.config().exists());
    write(&bed.page(), "theirs");
    for of_user in [bed.path("run/smcr"), bed.page()] {
        chown(of_user, Some(NOBODY), None).unwrap();
    }
    bed.smcrctl(&["get", "-n", "spin_us"]).assert().success().stdout("50\n").stderr(contains("unset XDG_RUNTIME_DIR").and(contains("remove").not()));
    bed.ok(&["disable"]);
}
