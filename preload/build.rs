//! Link flags of libsmcr.so: never unloaded (hooks stay valid to the end), constructed before the
//! other libraries (hooks find their table filled), named. What it calls by a name that it defines
//! itself is its own: a program may define that name too, and call the library in it (Erlang's sigaction).
fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libsmcr.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rerun-if-changed=build.rs");
}
