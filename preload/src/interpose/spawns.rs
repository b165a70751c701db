//! posix_spawn and pidfd_spawn (glibc 2.39): programs that are started without a hook of ours in the child.
//!
//! What becomes of connections that they have is `table::forks`' matter; what their file actions give away `table::spawned`'s.

use super::{guarded, hooks};
use crate::control;
use crate::table::{forks, spawned};
use crate::{config, real, sys, table};
use libc::{c_char, c_int, c_void};

/// The four differ in whether they look for the program, and in what they tell of it.
macro_rules! spawns {
    ($($name:ident tells $told:ident,)*) => {
        hooks! {$(
            fn $name(
                to: *mut c_int,
                program: *const c_char,
                actions: *const c_void,
                attributes: *const c_void,
                argv: *const *const c_char,
                envp: *const *const c_char
            ) -> c_int {
                // SAFETY: the program's arguments, and a place for the number where it has none.
                spawning(to, Named::$told, actions, envp, |to| unsafe { real::$name(to, program, actions, attributes, argv, envp) })
            }
        )*}
    };
}

spawns! {
    posix_spawn tells Number,
    posix_spawnp tells Number,
    pidfd_spawn tells Descriptor,
    pidfd_spawnp tells Descriptor,
}

hooks! {
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
        if let Some(s) = table::sock(fd) {
            guarded(|| spawned::give(actions as usize, s, fd, new));
        }
        // SAFETY: the program's arguments.
        unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, new) }
    }

    fn posix_spawn_file_actions_init(actions: *mut c_void) -> c_int {
        spawned::forget(actions as usize);
        // SAFETY: the program's arguments.
        unsafe { real::posix_spawn_file_actions_init(actions) }
    }

    fn posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int {
        spawned::forget(actions as usize);
        // SAFETY: the program's arguments.
        unsafe { real::posix_spawn_file_actions_destroy(actions) }
    }
}

/// How the caller is told which process it is.
#[derive(Clone, Copy)]
enum Named {
    Number,
    Descriptor,
}

/// A program is started, with what stands around it; `call` gets where its number goes, or its descriptor.
fn spawning(to: *mut c_int, named: Named, actions: *const c_void, envp: *const *const c_char, call: impl FnOnce(*mut c_int) -> c_int) -> c_int {
    if control::is_withdrawn() {
        return call(to);
    }
    // SAFETY: the environment that the program gives to the call.
    let has_library = || unsafe { config::is_in(envp) };
    let place = sys::caught(|| forks::before_spawn(actions as usize, has_library)).flatten();
    let mut own = 0;
    let to = match named {
        Named::Number if to.is_null() => &raw mut own,
        _ => to,
    };
    let r = call(to);
    guarded(|| forks::after_spawn(actions as usize, r == 0));
    if let Some(place) = place {
        // SAFETY: the program's variable, or our own.
        let told = (r == 0 && !to.is_null()).then(|| unsafe { *to });
        place.started(match (told, named) {
            (None, _) => 0,
            (Some(pid), Named::Number) => pid.cast_unsigned(),
            (Some(fd), Named::Descriptor) => sys::proc::of_pidfd(fd).unwrap_or(0),
        });
    }
    r
}
