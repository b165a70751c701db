#![no_main]

#[path = "../../admin/src/config.rs"]
#[allow(dead_code)]
mod config;
#[path = "../../admin/src/interfaces.rs"]
#[allow(dead_code)]
mod interfaces;
#[path = "../../admin/tests/fuzz/target.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::config_file(data));
