//! Link flags of libsmcr.so: never unloaded (hooks stay valid to the end), constructed before the
//! other libraries (hooks find their table filled), named.
fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsmcr.so");
    println!("cargo:rerun-if-changed=build.rs");
}
