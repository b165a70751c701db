//! A bounded run of the fuzz target of smcrctl's configuration file.

#[path = "../../../proto/tests/fuzz/bounded.rs"]
mod bounded;
#[path = "../../src/config.rs"]
#[allow(dead_code)]
mod config;
#[path = "../../src/interfaces.rs"]
#[allow(dead_code)]
mod interfaces;
mod target;

#[test]
fn config_file() {
    bounded::run("config_file", target::config_file);
}
