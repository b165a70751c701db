//! Changing and showing attributes.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use smcr_proto::control::{self, Attribute, LEN, offset};

use crate::bed::{Bed, words, write};

fn page(bed: &Bed) -> control::Page {
    control::parse(&fs::read(bed.page()).unwrap()).unwrap()
}

#[test]
fn a_change_reaches_file_and_page() {
    let bed = Bed::new();
    bed.ok(&["disable", "--user"]);
    assert!(!page(&bed).layer.values().enabled);
    assert_eq!(fs::read_to_string(bed.config()).unwrap(), "enabled = false\n");
    bed.ok(&["set", "--user", "spin_us=7", "port_range_list=1-20,23"]);
    assert_eq!(bed.ok(&["get", "-n", "spin_us"]), "7\n");
    assert_eq!(bed.ok(&["get", "port_range_list"]), "port_range_list = 1-20,23\n");
    bed.ok(&["set", "--user", "spin_us", "8"]);
    assert_eq!(bed.ok(&["get", "-n", "spin_us"]), "8\n");
    bed.ok(&["set", "--user", "rules", "use=tcp port=9"]);
    assert_eq!(bed.ok(&["get", "-n", "rules"]), "use=tcp port=9\n");
    bed.ok(&["unset", "--user", "rules"]);
    bed.ok(&["unset", "--user", "spin_us"]);
    assert!(!page(&bed).layer.sets(Attribute::SpinUs));
    assert_eq!(fs::read_to_string(bed.config()).unwrap(), "enabled = false\nport_range_list = \"1-20,23\"\n");
}

#[test]
fn the_page_changes_in_place_and_stays_read_only() {
    let bed = Bed::new();
    bed.ok(&["enable", "--user"]);
    let before = fs::metadata(bed.page()).unwrap();
    assert_eq!(before.permissions().mode() & 0o777, 0o400);
    bed.ok(&["set", "--user", "mode=shm"]);
    bed.ok(&["set", "--user", "mode=off"]);
    let after = fs::metadata(bed.page()).unwrap();
    assert_eq!(before.ino(), after.ino());
    assert_eq!(after.permissions().mode() & 0o777, 0o400);
    let bytes = fs::read(bed.page()).unwrap();
    let generation = u64::from_le_bytes(*bytes[offset::GENERATION..].first_chunk().unwrap());
    assert_eq!(generation, 4);
}

#[test]
fn runtime_leaves_the_file_alone_until_apply() {
    let bed = Bed::new();
    bed.ok(&["set", "--user", "spin_us=5"]);
    bed.ok(&["set", "--user", "--runtime", "spin_us=9"]);
    assert_eq!(bed.ok(&["get", "-n", "spin_us"]), "9\n");
    assert_eq!(fs::read_to_string(bed.config()).unwrap(), "spin_us = 5\n");
    bed.ok(&["config", "apply", "--user"]);
    assert_eq!(bed.ok(&["get", "-n", "spin_us"]), "5\n");
}

#[test]
fn mistakes_are_one_line_and_change_nothing() {
    let bed = Bed::new();
    bed.ok(&["set", "--user", "port_range_list=1-20,23"]);
    let file = fs::read(bed.config()).unwrap();
    let image = fs::read(bed.page()).unwrap();
    for (args, told) in [
        (&["set", "--user", "spin_us=1", "nonsense=1"][..], "no attribute `nonsense`; there are enabled,"),
        (&["set", "--user", "port_range_list=9-2"], "`9-2`: the range runs backwards; write 2-9"),
        (&["set", "--user", "port_range_list=70000"], "`70000`: ports go from 1 to 65535"),
        (&["set", "--user", "port_range_list=1-5,3"], "`3`: overlaps 1-5"),
        (&["set", "--user", "enabled"], "`enabled`: write ATTRIBUTE=VALUE"),
        (&["set", "--user", "profile=fast"], "no profile `fast`; there are safe,"),
        (&["set", "--user", "ip_addr_list=nosuchif0"], "`nosuchif0` is neither an address"),
        (&["set", "--user", "user_eids=a b"], "a user EID has"),
        (&["port-range", "add", "--user", "20-30"], "1-20 is in the list already"),
        (&["port-range", "add", "--user", ""], "write ports"),
        (&["port-range", "del", "--user", "99"], "`99` is not in the list"),
        (&["port-range", "del", "--user", "1-20,23"], "would be empty"),
        (&["rule", "add", "--user", "port=80"], "a rule needs use=smcr or use=tcp"),
        (&["rule", "del", "--user", "1"], "no rule 1"),
        (&["ueid", "del", "--user", "X"], "no user EID `X`"),
        (&["get", "nonsense"], "no attribute `nonsense`"),
        (&["enabel"], "unrecognized subcommand 'enabel'"),
        (&["set", "--user", "mode", "fast"], "mode: `fast`: write auto, shm,"),
        (&["set", "--user", "nonsense", "1"], "`nonsense`: write ATTRIBUTE=VALUE"),
        (&["stats", "--pid", "x"], "see smcrctl stats --help"),
        (&["set"], "required arguments were not provided"),
        (&["enable", "--host", "--user"], "cannot be used with"),
    ] {
        let line = bed.fails(args, 2);
        assert!(line.contains(told), "{args:?}: {line}");
    }
    assert_eq!(fs::read(bed.config()).unwrap(), file);
    assert_eq!(fs::read(bed.page()).unwrap(), image);
}

#[test]
fn broken_files_are_named() {
    let bed = Bed::new();
    write(&bed.config(), "enabled = true\nport_range_list = \"1-\"\n");
    let line = bed.fails(&["set", "--user", "spin_us=1"], 1);
    assert!(line.contains("smcr.toml: line 2: port_range_list: `1-`"), "{line}");
    assert!(!bed.page().exists());
    bed.smcrctl(&["config", "check"]).assert().code(1).stderr(predicates::str::contains("line 2: port_range_list"));
    let other = bed.path("other.toml");
    write(&other, "mode = \"fast\"");
    let line = bed.fails(&["config", "check", other.to_str().unwrap()], 1);
    assert!(line.ends_with("line 1: mode: `fast`: write auto, shm, rdma or off"), "{line}");
    assert!(bed.fails(&["config", "check", "/nonexistent"], 1).ends_with("; check the path"));
}

#[test]
fn pages_that_cannot_be_used_are_told_and_kept() {
    let bed = Bed::new();
    bed.ok(&["enable", "--user"]);
    let mut newer = fs::read(bed.page()).unwrap();
    newer[offset::VERSION] = 9;
    fs::remove_file(bed.page()).unwrap();
    write(&bed.page(), &newer);
    let line = bed.fails(&["disable", "--user"], 1);
    assert!(line.contains("layout version 9, newer than 1; upgrade"), "{line}");
    assert_eq!(fs::read(bed.page()).unwrap(), newer);
    // What can be shown is shown: the other layers.
    bed.smcrctl(&["config", "show"])
        .assert()
        .success()
        .stdout(predicates::str::contains("enabled = 1\n"))
        .stderr(predicates::str::contains("layout version 9"));
    write(&bed.page(), &newer[..100]);
    let line = bed.fails(&["config", "apply", "--user"], 1);
    assert!(line.contains("has 100 bytes instead of"), "{line}");
    write(&bed.page(), vec![1; LEN]);
    let line = bed.fails(&["config", "apply", "--user"], 1);
    assert!(line.contains("not a control page"), "{line}");
}

#[test]
fn a_writer_that_died_is_repaired() {
    let bed = Bed::new();
    bed.ok(&["set", "--user", "spin_us=3"]);
    let mut image = fs::read(bed.page()).unwrap();
    image[offset::GENERATION] = 7;
    image[offset::SPIN_US] = 99;
    fs::remove_file(bed.page()).unwrap();
    write(&bed.page(), &image);
    bed.smcrctl(&["get"]).assert().stderr(predicates::str::contains("config apply repairs it"));
    bed.ok(&["set", "--user", "mode=shm"]);
    assert_eq!(bed.ok(&["get", "-n", "spin_us", "mode"]), "3\nshm\n");
    assert_eq!(fs::read(bed.page()).unwrap()[offset::GENERATION], 8);
}

#[test]
fn the_origin_of_each_value() {
    let bed = Bed::new();
    bed.ok(&["set", "--user", "mode=shm", "spin_us=1"]);
    let output = bed.smcrctl(&["config", "show", "--origin"]).env("SMCR_SPIN_US", "2").assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = words(&text);
    let of = |name: &str| lines.iter().find(|l| l[0] == name).unwrap()[1..].to_vec();
    assert_eq!(of("spin_us"), ["2", "environment", "SMCR_SPIN_US"]);
    assert_eq!(of("mode"), ["shm", "user", bed.page().to_str().unwrap()]);
    assert_eq!(of("strict"), ["0", "default"]);
    bed.smcrctl(&["set", "--user", "spin_us=3"])
        .env("SMCR_SPIN_US", "2")
        .assert()
        .success()
        .stderr(predicates::str::contains("spin_us is set by SMCR_SPIN_US, which is stronger"));
}

#[test]
fn rules_and_eids_in_order() {
    let bed = Bed::new();
    bed.ok(&["rule", "add", "--user", "use=tcp", "program=redis*"]);
    bed.ok(&["rule", "add", "--user", "--at", "1", "use=smcr uid=7 port=80-90"]);
    assert_eq!(bed.ok(&["rule", "list"]), "1\tuse=smcr uid=7 port=80-90\n2\tuse=tcp program=redis*\n");
    bed.ok(&["rule", "del", "--user", "1"]);
    assert_eq!(bed.ok(&["rule", "list", "--user"]), "1\tuse=tcp program=redis*\n");
    bed.ok(&["ueid", "add", "--user", "A.B"]);
    bed.ok(&["ueid", "add", "--user", "C"]);
    bed.ok(&["ueid", "del", "--user", "A.B"]);
    assert_eq!(bed.ok(&["ueid", "show"]), "C\n");
    bed.ok(&["ueid", "flush", "--user"]);
    assert_eq!(bed.ok(&["ueid", "show"]), "");
}

#[test]
fn many_writers_lose_nothing() {
    let bed = Bed::new();
    std::thread::scope(|scope| {
        for port in 1..=8 {
            let bed = &bed;
            scope.spawn(move || bed.ok(&["port-range", "add", "--user", &(port * 10).to_string()]));
        }
    });
    assert_eq!(bed.ok(&["get", "-n", "port_range_list"]), "10,20,30,40,50,60,70,80\n");
}

#[test]
fn profiles_set_what_they_name() {
    let bed = Bed::new();
    bed.ok(&["set", "--user", "strict=1", "profile=cpu"]);
    assert_eq!(bed.ok(&["get", "-n", "spin_us", "strict"]), "0\n1\n");
    bed.ok(&["set", "--user", "profile=latency"]);
    bed.ok(&["config", "apply", "--user"]);
    assert_eq!(bed.ok(&["get", "-n", "spin_us", "strict"]), "200\n1\n");
}

/// One profile over another: the file makes the page that the commands have made.
#[test]
fn profiles_over_each_other_are_the_same_in_file_and_page() {
    let bed = Bed::new();
    bed.ok(&["set", "--user", "profile=safe"]);
    bed.ok(&["set", "--user", "profile=cpu"]);
    let shown = bed.ok(&["get", "spin_us", "max_memory", "switch_ops", "switch_bytes"]);
    assert!(shown.contains("spin_us = 0\nmax_memory = 256\n"), "{shown}");
    bed.ok(&["config", "apply", "--user"]);
    assert_eq!(bed.ok(&["get", "spin_us", "max_memory", "switch_ops", "switch_bytes"]), shown);
}

/// What holds now only does not get into the file by the way, and an edit of the file is not lost.
#[test]
fn lists_that_differ_in_file_and_page_are_not_mixed() {
    let bed = Bed::new();
    bed.ok(&["set", "--user", "port_range_list=23", "user_eids=A", "rules=use=tcp port=9"]);
    bed.ok(&["port-range", "add", "--user", "--runtime", "80"]);
    bed.ok(&["rule", "add", "--user", "--runtime", "use=tcp port=10"]);
    bed.ok(&["ueid", "add", "--user", "--runtime", "B"]);
    let (file, image) = (fs::read(bed.config()).unwrap(), fs::read(bed.page()).unwrap());
    for args in [
        &["port-range", "add", "--user", "99"][..],
        &["port-range", "del", "--user", "80"],
        &["rule", "add", "--user", "use=tcp", "port=11"],
        &["rule", "del", "--user", "2"],
        &["ueid", "add", "--user", "C"],
        &["ueid", "del", "--user", "B"],
    ] {
        let line = bed.fails(args, 1);
        assert!(line.contains("smcrctl config apply loads the file's"), "{args:?}: {line}");
    }
    assert_eq!((fs::read(bed.config()).unwrap(), fs::read(bed.page()).unwrap()), (file, image));
    bed.ok(&["port-range", "del", "--user", "--runtime", "80"]);
    bed.ok(&["port-range", "add", "--user", "99"]);
    bed.ok(&["ueid", "flush", "--user"]);
    bed.ok(&["ueid", "add", "--user", "0123"]);
    bed.ok(&["config", "apply", "--user"]);
    assert_eq!(bed.ok(&["rule", "list"]), "1\tuse=tcp port=9\n");
    assert_eq!(bed.ok(&["get", "-n", "port_range_list", "user_eids"]), "23,99\n0123\n");
}

/// At the start of a machine: what the file says otherwise holds, and the list is not every address.
#[test]
fn an_interface_without_an_address_holds_up_nothing() {
    let bed = Bed::new();
    write(&bed.config(), "enabled = false\nip_addr_list = \"nosuch0\"\n");
    bed.smcrctl(&["config", "apply", "--user"])
        .assert()
        .success()
        .stderr(predicates::str::contains("smcr.toml: line 2: ip_addr_list: `nosuch0` is neither an address"));
    assert_eq!(bed.ok(&["get", "-n", "enabled", "ip_addr_list"]), "0\n0.0.0.0\n");
    write(&bed.config(), "ip_addr_list = \"10.0.0.0/8, nosuch0\"\n");
    bed.ok(&["config", "apply", "--user"]);
    assert_eq!(bed.ok(&["get", "-n", "ip_addr_list"]), "10.0.0.0/8\n");
    bed.ok(&["set", "--user", "spin_us=3"]);
    assert!(fs::read_to_string(bed.config()).unwrap().contains("nosuch0"));
    // Whoever asks for mistakes is told, and who names it now.
    bed.smcrctl(&["config", "check"]).assert().code(1).stderr(predicates::str::contains("`nosuch0` is neither"));
    bed.fails(&["set", "--user", "ip_addr_list=nosuch0"], 2);
    // What can be no interface is a mistake as before.
    write(&bed.config(), "enabled = false\nip_addr_list = \"10.0.0.0/33\"\n");
    bed.fails(&["config", "apply", "--user"], 1);
}

/// One switch beside another that is off.
#[test]
fn enable_says_what_keeps_it_off() {
    let bed = Bed::new();
    bed.ok(&["set", "--user", "mode=off"]);
    let told = |told: &str| predicates::str::contains(told.to_string());
    bed.smcrctl(&["enable", "--user"]).assert().success().stderr(told("mode is off"));
    bed.ok(&["set", "--user", "mode=auto"]);
    bed.smcrctl(&["enable", "--user"]).assert().success().stderr("");
}

/// The eBPF programs follow the host's `enabled`, whichever command changes it: here none are pinned, and that is said.
#[test]
fn the_programs_follow_enabled() {
    let script = "mount -t tmpfs none /run && mount -t tmpfs none /etc && { [ ! -d /sys/fs/bpf ] || mount -t tmpfs none /sys/fs/bpf; }";
    let inside = |args: &str| {
        let line = format!("{script} || exit 77; exec {} {args}", env!("CARGO_BIN_EXE_smcrctl"));
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &line]).env("HOME", "/").output().unwrap()
    };
    let output = inside("set --host enabled=0");
    if !nix::unistd::geteuid().is_root() || output.status.code() == Some(77) {
        return println!("not tested: no mount namespace of its own can be had here");
    }
    let told = |output: std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told(output).contains("SMC TCP option: no eBPF programs were pinned"));
    assert_eq!(told(inside("set --host spin_us=3")), "");
}
