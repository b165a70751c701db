//! enable-unit and disable-unit towards systemd: a systemctl of the test's own that answers and
//! remembers, and the real systemd-analyze where there is one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use predicates::str::contains;

use super::bed::{Bed, write};
use super::elf;
use super::programs::harmless;

/// A systemctl first in PATH: it answers `show` from files, and keeps its arguments.
fn systemctl(bed: &Bed, answers: &[(&str, &str)]) -> String {
    let dir = bed.path("bin");
    for (property, answer) in answers {
        write(&dir.join("answers").join(property), answer);
    }
    let script = format!(
        "#!/bin/sh\ncd {dir} || exit 1\necho \"$*\" >>calls\n\
         [ \"$1\" = --user ] && shift\n\
         case $1 in\nshow) cat \"answers/$4\" 2>/dev/null || echo ;;\n\
         daemon-reload) [ ! -e broken ] || {{ echo 'no bus' >&2; exit 1; }} ;;\nesac\n",
        dir = dir.display()
    );
    write(&dir.join("systemctl"), script);
    fs::set_permissions(dir.join("systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:/usr/bin:/bin", dir.display())
}

fn drop_in(bed: &Bed) -> PathBuf {
    bed.path("root/etc/systemd/system/redis.service.d/50-smcr.conf")
}

#[test]
fn systemd_is_asked_and_told() {
    let bed = Bed::new();
    let path = systemctl(
        &bed,
        &[
            ("Environment", "A=b LD_PRELOAD=/usr/lib/other.so"),
            ("ExecStart", "{ path=/bin/sleep ; argv[]=/bin/sleep 1 ; }"),
            ("RestrictAddressFamilies", "AF_INET AF_UNIX"),
        ],
    );
    let lib = harmless();
    let run = |args: &[&str]| {
        let mut command = bed.smcrctl(args);
        command.env("PATH", &path).env("SMCR_LIB", &lib);
        command.assert()
    };
    run(&["enable-unit", "redis"])
        .success()
        .stdout(contains("takes effect when redis.service is started next"))
        .stderr(contains("may not use AF_NETLINK; connections that it makes stay on TCP"));
    // What the unit preloads already stays, behind ours.
    let text = fs::read_to_string(drop_in(&bed)).unwrap();
    assert!(text.contains(&format!("LD_PRELOAD={lib}")), "{text}");
    assert!(text.contains("/usr/lib/other.so"), "{text}");
    let calls = fs::read_to_string(bed.path("bin/calls")).unwrap();
    assert!(calls.lines().any(|l| l == "daemon-reload"), "{calls}");
    // A second time gives the same file.
    run(&["enable-unit", "redis"]).success();
    assert_eq!(fs::read_to_string(drop_in(&bed)).unwrap(), text);
    write(&bed.path("bin/broken"), "");
    // What systemd was not told is not done.
    run(&["disable-unit", "redis"]).code(1).stderr(contains("daemon-reload failed, so nothing is changed: no bus"));
    assert_eq!(fs::read_to_string(drop_in(&bed)).unwrap(), text);
    run(&["enable-unit", "--profile", "cpu", "redis"]).code(1);
    assert_eq!(fs::read_to_string(drop_in(&bed)).unwrap(), text);
    run(&["enable-unit", "--user", "redis"]).code(1);
    let user = bed.path("home/.config/systemd/user/redis.service.d/50-smcr.conf");
    assert!(!user.parent().unwrap().exists());
    fs::remove_file(bed.path("bin/broken")).unwrap();
    run(&["enable-unit", "--user", "redis"]).success();
    assert!(user.exists());
    let calls = fs::read_to_string(bed.path("bin/calls")).unwrap();
    assert!(calls.lines().any(|l| l == "--user daemon-reload"), "{calls}");
    run(&["disable-unit", "redis"]).success();
    assert!(!drop_in(&bed).parent().unwrap().exists());
}

/// What the caller's shell has set is not in the unit's environment: the drop-in has all of the profile.
#[test]
fn a_profile_is_whole() {
    let bed = Bed::new();
    let path = systemctl(&bed, &[("ExecStart", "{ path=/bin/sleep ; }")]);
    let mut command = bed.smcrctl(&["enable-unit", "--profile", "latency", "redis"]);
    command.env("PATH", &path).env("SMCR_LIB", harmless()).env("SMCR_SPIN_US", "7").assert().success();
    let text = fs::read_to_string(drop_in(&bed)).unwrap();
    for line in ["Environment=SMCR_SPIN_US=200\n", "Environment=SMCR_SWITCH_OPS=4\n"] {
        assert!(text.contains(line), "{text}");
    }
}

/// A library in a directory of which the unit sees another one is told of: it would have no effect.
#[test]
fn a_unit_that_cannot_see_the_library() {
    let dir = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
    let library = dir.path().join("libsmcr.so");
    fs::copy(harmless(), &library).unwrap();
    for (property, answer, is_told) in [("PrivateTmp", "yes", true), ("PrivateTmp", "no", false), ("ProtectHome", "yes", false)] {
        let bed = Bed::new();
        let path = systemctl(&bed, &[("ExecStart", "{ path=/bin/sleep ; }"), (property, answer)]);
        let mut command = bed.smcrctl(&["enable-unit", "redis"]);
        let output = command.env("PATH", &path).env("SMCR_LIB", &library).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
        assert_eq!(told.contains("redis.service cannot see"), is_told, "{property}={answer}: {told}");
    }
}

/// As Debian's redis-server.service has it: nothing is executable but what is named, and the loader cannot map the library from elsewhere.
#[test]
fn a_unit_that_may_not_execute_the_library() {
    let dir = tempfile::Builder::new().tempdir_in("/var/tmp").unwrap();
    let library = dir.path().join("libsmcr.so");
    fs::copy(harmless(), &library).unwrap();
    let (own, above) = (library.to_str().unwrap(), dir.path().to_str().unwrap());
    let named = format!("/usr/bin/redis-server /usr/lib -{own}");
    let cases = [
        ("/", "/usr/bin/redis-server /usr/lib /lib", true),
        ("/", named.as_str(), false),
        ("", "", false),
        (above, "/var", true),
        ("/", above, false),
    ];
    for (denied, allowed, is_told) in cases {
        let bed = Bed::new();
        let path = systemctl(&bed, &[("ExecStart", "{ path=/bin/sleep ; }"), ("NoExecPaths", denied), ("ExecPaths", allowed)]);
        let mut command = bed.smcrctl(&["enable-unit", "redis"]);
        let output = command.env("PATH", &path).env("SMCR_LIB", &library).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{told}");
        assert_eq!(told.contains(&format!("say ExecPaths={own} in")), is_told, "{denied}, but {allowed}: {told}");
    }
}

/// A unit that systemd does not know, or no systemd: one line, and no drop-in.
#[test]
fn units_that_are_not_there() {
    let bed = Bed::new();
    let path = systemctl(&bed, &[("LoadState", "not-found")]);
    let enable = |path: &str, told: &'static str| {
        let mut command = bed.smcrctl(&["enable-unit", "redis"]);
        command.env("PATH", path).env("SMCR_LIB", harmless());
        command.assert().code(1).stderr(contains(told));
        assert!(!drop_in(&bed).parent().unwrap().exists());
    };
    enable(&path, "no unit redis.service; systemctl list-unit-files");
    enable("/nonexistent", "systemd does not answer about redis.service; use --no-reload");
}

#[test]
fn a_unit_whose_program_cannot_have_it_is_refused() {
    let bed = Bed::new();
    let program = bed.path("static");
    write(&program, elf::program(None, false));
    let start = format!("{{ path={} ; }}", program.display());
    let path = systemctl(&bed, &[("ExecStart", &start)]);
    let mut command = bed.smcrctl(&["enable-unit", "redis"]);
    command.env("PATH", &path).env("SMCR_LIB", harmless());
    command.assert().code(1).stderr(contains("statically linked"));
    assert!(!drop_in(&bed).parent().unwrap().exists());
}

/// systemd itself reads the drop-in and the units of the package, and finds nothing wrong.
#[test]
fn systemd_understands_the_files() {
    if !PathBuf::from("/usr/bin/systemd-analyze").exists() {
        println!("no systemd-analyze here: not tested");
        return;
    }
    let bed = Bed::new();
    let units = bed.path("root/etc/systemd/system");
    write(&units.join("redis.service"), "[Unit]\nDescription=x\nDefaultDependencies=no\n[Service]\nExecStart=/bin/sleep 1\n");
    let mut command = bed.smcrctl(&["enable-unit", "--no-reload", "--profile", "latency", "redis"]);
    command.env("SMCR_LIB", harmless()).assert().success();
    let packaging = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging");
    let own = [("smcr.service", "smcr.service"), ("smcr-network.service", "smcr-network.service"), ("user/smcr.service", "smcr-user.service")];
    for (from, to) in own {
        let text = fs::read_to_string(format!("{packaging}/{from}")).unwrap();
        // The package is not installed here.
        let text = text.replace("/usr/bin/smcrctl", "/bin/true");
        write(&units.join(to), text);
    }
    let verify = |name: &str| {
        let output = std::process::Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(units.join(name))
            .env("SYSTEMD_UNIT_PATH", format!("{}:/usr/lib/systemd/system", units.display()))
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for name in ["redis.service", "smcr.service", "smcr-network.service", "smcr-user.service"] {
        let said = verify(name);
        let ours: Vec<_> = said.lines().filter(|l| l.contains(&*bed.path("").to_string_lossy())).collect();
        assert!(ours.is_empty(), "{name}: {said}");
    }
    // The same look finds a mistake.
    write(&units.join("redis.service.d/60.conf"), "[Service]\nEnvironmnt=A=b\n");
    assert!(verify("redis.service").contains("Environmnt"));
}
