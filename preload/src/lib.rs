//! libsmcr.so: preloaded into a TCP program, moves its connections to shared memory where it can.
//!
//! From the outside in: [`interpose`] exports the hooks; [`table`] knows which descriptor is a
//! tracked socket; [`ready`] serves epoll, poll and select; [`rendezvous`] finds and proves peers;
//! [`engine`] moves one connection's bytes; [`transport`] is the shared memory; [`sys`] the kernel.
//! [`family`] holds what a process shares with its children and shows to smcrctl, [`control`] follows
//! what smcrctl asks for.
//! docs/ARCHITECTURE.md walks one send() and one recv() through it.

pub mod config;
pub mod control;
pub mod engine;
pub mod family;
pub mod fault;
pub mod interpose;
pub mod layout;
pub mod link;
pub mod log;
pub mod ready;
pub mod real;
pub mod rendezvous;
pub mod sys;
pub mod table;
pub mod transport;
pub mod verbs;

use libc::{c_char, c_int};

/// Runs before the other libraries' constructors (`-z initfirst`), with the arguments that glibc
/// gives to constructors. libc itself is not initialised yet: nothing here allocates or prints
/// through it.
extern "C" fn start(_argc: c_int, _argv: *const *const c_char, envp: *const *const c_char) {
    real::resolve();
    // SAFETY: no arguments besides a constant.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return; // a set-uid program: inert
    }
    sys::clock::start();
    sys::proc::start();
    engine::spin::start();
    sys::thread::start();
    rendezvous::start(table::life::is_stdio, table::steps::is_there);
    control::on_drain(table::drain::drain);
    engine::inside::on_left(table::late::leave);
    engine::threads::on_end(table::waited::thread_ends);
    // SAFETY: a function of this type. The first handler: in a child it runs before all others.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(interpose::begins)) };
    interpose::start();
    sys::jump::start();
    sys::unwound::start(table::left::all);
    // SAFETY: glibc passes the environment block.
    unsafe { config::read(envp) };
    let _ = sys::caught(table::inherit::look);
}

/// Runs at exit(3), after the program's own handlers.
extern "C" fn end() {
    let _ = sys::caught(table::forks::at_exit);
}

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static END: extern "C" fn() = end;

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;
