//! Bounded runs of the fuzz targets of smcr-proto ([`bounded`]).

mod bounded;
mod targets;

macro_rules! tests {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let target = targets::ALL.iter().find(|t| t.0 == stringify!($name)).unwrap();
            bounded::run(target.0, target.1);
        }
    )*};
}

tests! {
    clc clc_stream llc cdc handshake group connection
    channel way_back control_page settings link_record ring
}

/// Fuzzers of `fuzz/fuzz_targets` that are run elsewhere.
const OF_ADMIN: &[&str] = &["config_file", "family_page"];

#[test]
fn every_target_is_run_and_has_a_fuzzer() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/fuzz_targets");
    let all: Vec<_> = targets::ALL.iter().map(|t| t.0).chain(OF_ADMIN.iter().copied()).collect();
    for name in &all {
        assert!(dir.join(format!("{name}.rs")).exists(), "{name}");
    }
    let files = std::fs::read_dir(dir).unwrap().count();
    assert_eq!(files, all.len());
}
