//! Bounded runs of the fuzz targets of smcrctl: its configuration file, and the pages of processes that it shows.

#[path = "../../../proto/tests/fuzz/bounded.rs"]
mod bounded;
#[path = "../../src/config.rs"]
#[allow(dead_code)]
mod config;
#[path = "../../src/interfaces.rs"]
#[allow(dead_code)]
mod interfaces;
mod page;
/// With a folder of its own, in which `family` finds its parts.
#[path = "../../src"]
#[allow(dead_code, unused_imports)]
mod src {
    pub mod family;
}
mod target;

#[test]
fn config_file() {
    bounded::run("config_file", target::config_file);
}

#[test]
fn family_page() {
    bounded::run("family_page", page::family_page);
}
