//! drain: what is asked for, of whom, and what is awaited.

use std::io::{PipeReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use smcr_proto::control::{self, Target};
use smcr_proto::page::{State, process};

use crate::bed::Bed;
use crate::fake::Fake;

#[test]
fn a_drain_is_asked_for_and_awaited() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Accelerated, 0, [1, 1]);
    let target = format!("pid:{}", fake.pid());
    let line = bed.fails(&["drain", "--user", "--timeout", "0", &target], 1);
    assert!(line.contains("1 of 1 connections are still in memory"), "{line}");
    let seen = drains(&bed).newest;
    assert_eq!(seen, 1);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| bed.ok(&["drain", "--user", &target]));
        // The library's part: sees the request and moves the connection.
        let end = Instant::now() + Duration::from_secs(20);
        while drains(&bed).newest == seen && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let asked: Vec<_> = drains(&bed).since(seen).collect();
        assert!(matches!(asked[..], [Target::Process { pid, .. }] if pid == fake.pid()));
        fake.connection(State::Tcp, 27, [0, 0]);
        assert_eq!(call.join().unwrap(), "moved 1 connections to TCP\n");
    });
    assert!(bed.ok(&["drain", "--user", &target]).contains("nothing to move"));
    bed.fails(&["drain", "--user", "x"], 2);
}

fn drains(bed: &Bed) -> control::Drains {
    let bytes = std::fs::read(bed.page()).unwrap();
    control::parse(&bytes).unwrap().drains
}

/// Runs `then` once a request is in the page.
fn when_asked(bed: &Bed, seen: u64, then: impl FnOnce(Vec<Target>)) {
    let end = Instant::now() + Duration::from_secs(20);
    let newest = || if bed.page().exists() { drains(bed).newest } else { 0 };
    while newest() == seen && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    then(drains(bed).since(seen).collect());
}

/// A host with traffic: the next connection goes to memory before the last has left it.
#[test]
fn a_connection_made_meanwhile_is_not_awaited() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let next = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ends = (next.local_addr().unwrap(), next.peer_addr().unwrap());
    let (bed, fake) = (Bed::new(), Fake::with_error(OwnedFd::from(next)));
    fake.connection(State::Accelerated, 0, [1, 1]);
    let target = format!("pid:{}", fake.pid());
    std::thread::scope(|scope| {
        let call = scope.spawn(|| bed.ok(&["drain", "--user", &target]));
        when_asked(&bed, 0, |_| {
            fake.page.socket(1, 2, State::Accelerated, 0, [1, 1], Some(ends));
            fake.connection(State::Tcp, 27, [0, 0]);
        });
        assert_eq!(call.join().unwrap(), "moved 1 connections to TCP\n");
    });
}

fn inode(pipe: &PipeReader) -> u64 {
    std::fs::metadata(format!("/proc/self/fd/{}", pipe.as_raw_fd())).unwrap().ino()
}

/// One that was busy when it was woken is woken again.
#[test]
fn who_does_not_answer_is_woken_again() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let number = inode(&reader);
    let (bed, fake) = (Bed::new(), Fake::with_error(OwnedFd::from(writer)));
    fake.connection(State::Accelerated, 0, [1, 1]);
    fake.page.word(fake.page.of_process(0, process::WAKE_FD), 2);
    fake.put(fake.page.of_process(0, process::WAKE_INODE), &number.to_le_bytes());
    let line = bed.fails(&["drain", "--user", "--timeout", "3", &format!("pid:{}", fake.pid())], 1);
    assert!(line.contains("still in memory after 3 s"), "{line}");
    drop(fake);
    let mut got = Vec::new();
    reader.read_to_end(&mut got).unwrap();
    assert!(got.len() >= 2, "{got:?}");
}

/// The number and start are sent as the process knows them.
#[test]
fn a_process_without_a_start_is_named_without_one() {
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Accelerated, 0, [1, 1]);
    fake.page.process(0, fake.pid(), 0);
    bed.ok(&["drain", "--user", "--no-wait", &format!("pid:{}", fake.pid())]);
    let asked: Vec<_> = drains(&bed).since(0).collect();
    assert!(matches!(asked[..], [Target::Process { start: 0, .. }]), "{asked:?}");
}

/// As root in a container without CAP_SYS_PTRACE, where others' descriptors can be listed and not read.
#[test]
fn what_cannot_be_looked_into_is_asked_and_said() {
    if !nix::unistd::geteuid().is_root() {
        return; // others can take nothing from themselves that they had
    }
    let (bed, fake) = (Bed::new(), Fake::start());
    fake.connection(State::Accelerated, 0, [1, 1]);
    let (pid, port) = (fake.pid(), fake.local.port());
    let run = |args: &[&str]| -> Output {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", env!("CARGO_BIN_EXE_smcrctl")]);
        let dir = |name| bed.path(name);
        command.env("HOME", dir("home")).env("XDG_RUNTIME_DIR", dir("run")).env_remove("XDG_CONFIG_HOME");
        command.args(args).output().unwrap()
    };
    for (target, asked) in
        [(format!("port:{port}"), Target::Port(port)), (format!("pid:{pid}"), Target::Process { pid, start: crate::page::start_of(pid) })]
    {
        let before = if bed.page().exists() { drains(&bed).newest } else { 0 };
        let output = run(&["drain", "--user", &target]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{target}: {told}");
        assert!(told.contains("asked as well, and smcrctl with CAP_SYS_PTRACE sees whether"), "{target}: {told}");
        let requests: Vec<_> = drains(&bed).since(before).collect();
        assert_eq!(requests, [asked], "{target}");
    }
    let asked = run(&["drain", "--user", "--no-wait", &format!("port:{port}")]);
    let told = String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.success() && told.contains("note: ") && told.contains("asked as well"), "{told}");
    // A port that nobody has: nothing to ask for.
    let none = run(&["drain", "--user", "port:1"]);
    assert!(none.status.success(), "{none:?}");
    let sock = run(&["sock", "-p", &pid.to_string()]);
    let told = String::from_utf8_lossy(&sock.stderr);
    assert!(!sock.status.success() && told.contains("run smcrctl with CAP_SYS_PTRACE"), "{told}");
}
