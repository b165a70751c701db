#![no_main]

#[path = "../../admin/tests/fuzz/page.rs"]
mod page;
#[path = "../../admin/src"]
#[allow(dead_code, unused_imports)]
mod src {
    pub mod family;
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| page::family_page(data));
