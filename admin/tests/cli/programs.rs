//! Starting programs, looking at them, and generated files.

use std::fs;
use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use smcr_proto::control::Attribute;

use crate::bed::{Bed, write};
use crate::elf;

/// A library that every program has anyway, in the place of ours.
pub fn harmless() -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|l| l.ends_with("/libc.so.6")).unwrap();
    line[line.find('/').unwrap()..].to_string()
}

fn program(bed: &Bed, name: &str, bytes: &[u8]) -> String {
    let path = bed.path(name);
    write(&path, bytes);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn run_puts_the_library_in_front() {
    let (bed, lib) = (Bed::new(), harmless());
    bed.smcrctl(&["run", "--profile", "cpu", "--strict", "--", "env"])
        .env("SMCR_LIB", &lib)
        .env("LD_PRELOAD", "libm.so.6")
        .assert()
        .success()
        .stdout(contains(format!("LD_PRELOAD={lib}:libm.so.6\n")).and(contains("SMCR_SPIN_US=0\n")).and(contains("SMCR_STRICT=1\n")));
    // What the user said is stronger than a profile.
    bed.smcrctl(&["run", "--profile", "cpu", "env"]).env("SMCR_LIB", &lib).env("SMCR_SPIN_US", "9").assert().stdout(contains("SMCR_SPIN_US=9\n"));
    bed.smcrctl(&["run", "--", "sh", "-c", "exit 7"]).env("SMCR_LIB", &lib).assert().code(7);
}

/// Rust's runtime ignores SIGPIPE in smcrctl, and its Command gives the default; the program gets what was there before.
#[test]
fn run_leaves_signals_as_they_were() {
    let (own, lib) = (env!("CARGO_BIN_EXE_smcrctl"), harmless());
    const PIPE: u64 = 1 << (nix::libc::SIGPIPE - 1);
    for (before, ignored) in [("trap '' PIPE;", PIPE), ("", 0)] {
        let script = format!("{before} exec '{own}' run -- grep SigIgn /proc/self/status");
        let output = std::process::Command::new("sh").args(["-c", &script]).env("SMCR_LIB", &lib).output().unwrap();
        let line = String::from_utf8_lossy(&output.stdout).into_owned();
        let mask = line.split_whitespace().nth(1).and_then(|m| u64::from_str_radix(m, 16).ok());
        assert_eq!(mask.map(|m| m & PIPE), Some(ignored), "{before} {line}");
    }
}

/// A program's name comes from whoever started it.
#[test]
fn a_name_cannot_steer_the_terminal_of_check() {
    let bed = Bed::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let name = bed.path("a\x1b[2Jb");
    std::os::unix::fs::symlink("/bin/sleep", &name).unwrap();
    // The listener goes with the Command: its process alone has it then.
    let mut service = std::process::Command::new(&name).arg("600").stdin(std::os::fd::OwnedFd::from(listener)).spawn().unwrap();
    let output = bed.smcrctl(&["check", &at]).env("SMCR_LIB", harmless()).output().unwrap();
    service.kill().unwrap();
    service.wait().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("a?[2Jb ({})", service.id())) && !text.contains('\x1b'), "{text}");
}

#[test]
fn run_refuses_what_cannot_have_it() {
    let bed = Bed::new();
    let of_glibc = Some("/lib64/ld-linux-x86-64.so.2");
    let (static_, go) = (elf::program(None, false), elf::program(of_glibc, true));
    let musl = elf::program(Some("/lib/ld-musl-x86_64.so.1"), false);
    for (name, bytes, word) in [
        ("static", &static_[..], "statically linked"),
        ("go", &go, "Go program"),
        ("musl", &musl, "musl program"),
        ("script", format!("#!{}\n", bed.path("static").display()).as_bytes(), "statically linked"),
        ("text", b"hello", "not an ELF program or script"),
        ("cut", &static_[..50], "is damaged"),
    ] {
        let path = program(&bed, name, bytes);
        let mut command = bed.smcrctl(&["run", "--", &path]);
        let output = command.env("SMCR_LIB", harmless()).assert().code(1).get_output().clone();
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.contains(word) && line.lines().count() == 1, "{name}: {line}");
    }
    let good = program(&bed, "good", &elf::program(of_glibc, false));
    assert!(bed.ok(&["check", "--program", &good]).contains("can have the library"));
    let musl = bed.path("musl");
    bed.smcrctl(&["check", "--program", musl.to_str().unwrap()])
        .assert()
        .code(1)
        .stdout(contains("musl").and(contains("what to change: use a build for glibc")));
    assert!(bed.fails(&["run", "--", "/nonexistent"], 1).contains("check the path"));
    assert!(bed.fails(&["run", "--", "no-such-program"], 1).contains("in PATH"));
    bed.fails(&["run", "--profile", "x", "--", "true"], 2);
    bed.fails(&["run"], 2);
    bed.smcrctl(&["run", "--", "true"])
        .env("SMCR_LIB", "/nonexistent.so")
        .assert()
        .code(1)
        .stderr(contains("SMCR_LIB names /nonexistent.so, which is not a file"));
}

/// One bench listens, another measures against it, with progress apart from the result.
#[test]
fn bench_between_two() {
    let (bed, lib) = (Bed::new(), harmless());
    let mut server = std::process::Command::new(env!("CARGO_BIN_EXE_smcrctl"))
        .args(["bench", "--listen", "127.0.0.1:0"])
        .env("SMCR_LIB", &lib)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(server.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let at = line.split([' ', ';']).nth(2).unwrap_or_default().to_string();
    let mut command = bed.smcrctl(&["bench", "--time", "0.1", "--json", &at]);
    let measured = command.env("SMCR_LIB", &lib).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let told = String::from_utf8_lossy(&measured.stderr);
    assert!(measured.status.success() && told.is_empty(), "{line}: {told}");
    let all: serde_json::Value = serde_json::from_slice(&measured.stdout).unwrap();
    for (i, kind) in ["ping", "stream"].iter().enumerate() {
        assert_eq!(all[i]["tcp"]["kind"], *kind, "{all}");
        assert!(all[i]["smcr"]["per_second"].as_f64() > Some(0.0), "{all}");
    }
    // Nobody listens there any more, once the process that served has found that the one that started it is gone.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while std::net::TcpStream::connect(&at).is_ok() {
        assert!(std::time::Instant::now() < end, "{at} still listens");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let mut command = bed.smcrctl(&["bench", "--time", "0.1", &at]);
    command.env("SMCR_LIB", &lib).assert().code(1).stderr(contains("start smcrctl bench --listen there"));
}

#[test]
fn units_get_and_lose_a_drop_in() {
    let bed = Bed::new();
    let lib = harmless();
    let enable = |unit: &str| {
        let mut command = bed.smcrctl(&["enable-unit", "--no-reload", "--profile", "cpu", unit]);
        command.env("SMCR_LIB", &lib);
        command
    };
    enable("redis").assert().success();
    let path = bed.path("root/etc/systemd/system/redis.service.d/50-smcr.conf");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(&format!("[Service]\nEnvironment=LD_PRELOAD={lib}\n")), "{text}");
    assert!(text.contains("Environment=SMCR_SPIN_US=0\n"), "{text}");
    bed.ok(&["disable-unit", "--no-reload", "redis.service"]);
    assert!(!path.parent().unwrap().exists());
    assert!(bed.fails(&["disable-unit", "--no-reload", "redis"], 1).contains("is not enabled"));
    enable("../evil").assert().code(2);
    enable("ssh.socket").assert().code(2);
}

#[test]
fn man_pages_and_completions_come_from_the_code() {
    let bed = Bed::new();
    let dir = bed.path("man");
    bed.ok(&["man", dir.to_str().unwrap()]);
    let page = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    assert!(page("smcrctl.1").contains("port\\-range"));
    assert!(page("smcrctl-sock.1").contains("Rings, cursors and bytes as well"));
    let (library, settings) = (page("smcr.7"), page("smcr.toml.5"));
    for attribute in Attribute::ALL {
        assert!(*attribute == Attribute::Rules || settings.contains(&format!("\n\\fB{}\\fR\n", attribute.name())), "{settings}");
        assert!(attribute.environment().is_none_or(|name| library.contains(&format!("\n\\fB{name}\\fR ("))), "{library}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(bed.ok(&["completions", shell]).contains("enable-unit"), "{shell}");
    }
    bed.fails(&["completions", "nosuch"], 2);
}

/// What is no text is a mistake like others.
#[test]
fn arguments_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let bed = Bed::new();
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_smcrctl"));
    let output = command.arg("--root").arg(odd).args(["stats", "-p", "x"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.ends_with("see smcrctl stats --help\n") && told.lines().count() == 1, "{told}");
    let mut command = bed.smcrctl(&["sock", "--reason", "x", "--program"]);
    assert_eq!(command.arg(odd).output().unwrap().status.code(), Some(2));
}

/// An option that a command could do nothing with is none of its.
#[test]
fn runtime_is_for_what_changes_settings() {
    let bed = Bed::new();
    for args in [&["port-range", "list"][..], &["rule", "list"], &["ueid", "show"], &["config", "apply"], &["drain"]] {
        let line = bed.fails(&[args, &["--runtime"]].concat(), 2);
        assert!(line.contains("unexpected argument '--runtime'"), "{line}");
        assert!(!bed.ok(&[args, &["--help"]].concat()).contains("--runtime"), "{args:?}");
    }
    assert!(bed.ok(&["disable", "--help"]).contains("--runtime"));
}

/// Every command and subcommand, as the completions know them: 24 lines of 80 columns, in both forms.
#[test]
fn help_fits_a_screen() {
    let bed = Bed::new();
    let mut pending = vec![vec![]];
    let mut seen = 0;
    while let Some(command) = pending.pop() {
        let with = |last: &'static str| [&command[..], &[last.to_string()]].concat();
        let help = |last| {
            let args = with(last);
            bed.ok(&args.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let text = help("--help");
        assert_eq!(text, help("-h"), "{command:?}");
        assert!(text.lines().count() <= 24, "{command:?}: {text}");
        let widest = text.lines().map(|l| l.chars().count()).max();
        assert!(widest <= Some(80), "{command:?}: {text}");
        seen += 1;
        // Subcommands are the words of the lines under their heading, or of the whole page of smcrctl.
        let lines = text.lines().skip_while(|l| *l != "Commands:" && !command.is_empty()).skip(1);
        let names = lines.take_while(|l| l.starts_with("  ")).filter_map(|l| l.split_whitespace().next());
        for name in names {
            let mut more = command.clone();
            more.push(name.to_string());
            pending.push(more);
        }
    }
    assert!(seen >= 21 + 4 + 4 + 3 + 3, "{seen}");
    assert!(bed.ok(&["--help"]).contains("Exit status: 0 success, 1 failure, 2 wrong usage."));
    assert!(bed.ok(&["--version"]).starts_with("smcrctl "));
}

#[test]
fn no_colour_in_a_pipe() {
    let bed = Bed::new();
    let text = bed.ok(&["check", "--program", "/bin/sh"]);
    assert!(!text.contains('\x1b'));
}

/// On a terminal there is colour, unless NO_COLOR or a dumb terminal says otherwise.
#[test]
fn colour_on_a_terminal() {
    let on_terminal = |name: &str, value: &str| {
        let inner = format!("{} check --program /bin/sh", env!("CARGO_BIN_EXE_smcrctl"));
        let output = std::process::Command::new("script")
            .args(["-qec", &inner, "/dev/null"])
            .env_remove("NO_COLOR")
            .env("TERM", "xterm")
            .env(name, value)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("can have the library"), "{text}");
        text.contains('\x1b')
    };
    assert!(on_terminal("NO_COLOR", ""));
    assert!(!on_terminal("NO_COLOR", "1"));
    assert!(!on_terminal("TERM", "dumb"));
}
