//! fork, exec, posix_spawn and signal handlers: what they mean for connections.
//!
//! system(3), popen(3) and posix_spawn(3) run no hook in the child and leave the parent's connections
//! alone; only what is handed to the new program by a file action goes back to TCP. Listeners that a
//! program inherits are unmarked (system and popen start a shell, which accepts nothing). exec variants
//! with variable arguments (execl...) are built on execve inside libc.

use super::{guarded, hooks};
use crate::control;
use crate::engine::{signals, spin, wait};
use crate::table::{self, forks, life};
use crate::{config, real};
use libc::{c_char, c_int, c_ulong, c_void, pid_t};
use smcr_proto::reason::Reason;

hooks! {
    fn fork() -> pid_t {
        guarded(forks::before_fork);
        // SAFETY: no arguments.
        let pid = unsafe { real::fork() };
        after_fork(pid);
        pid
    }

    fn _Fork() -> pid_t {
        guarded(forks::before_fork);
        // SAFETY: no arguments.
        let pid = unsafe { real::_Fork() };
        after_fork(pid);
        pid
    }

    fn _exit(status: c_int) {
        guarded(forks::at_exit);
        // SAFETY: the program's argument.
        unsafe { real::_exit(status) }
    }

    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
        before_exec(envp);
        // SAFETY: the program's arguments.
        failed(unsafe { real::execve(path, argv, envp) })
    }

    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
        before_exec(environment());
        // SAFETY: the program's arguments.
        failed(unsafe { real::execv(path, argv) })
    }

    fn execvp(path: *const c_char, argv: *const *const c_char) -> c_int {
        before_exec(environment());
        // SAFETY: the program's arguments.
        failed(unsafe { real::execvp(path, argv) })
    }

    fn execvpe(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
        before_exec(envp);
        // SAFETY: the program's arguments.
        failed(unsafe { real::execvpe(path, argv, envp) })
    }

    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
        before_exec(envp);
        // SAFETY: the program's arguments.
        failed(unsafe { real::fexecve(fd, argv, envp) })
    }

    fn execveat(dir: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int {
        before_exec(envp);
        // SAFETY: the program's arguments.
        failed(unsafe { real::execveat(dir, path, argv, envp, flags) })
    }

    fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        argv: *const *const c_char,
        envp: *const *const c_char
    ) -> c_int {
        // SAFETY: the program's arguments, and a place for the number where it has none.
        spawning(pid, |pid| unsafe { real::posix_spawn(pid, path, actions, attributes, argv, envp) })
    }

    fn posix_spawnp(
        pid: *mut pid_t,
        file: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        argv: *const *const c_char,
        envp: *const *const c_char
    ) -> c_int {
        // SAFETY: the program's arguments, and a place for the number where it has none.
        spawning(pid, |pid| unsafe { real::posix_spawnp(pid, file, actions, attributes, argv, envp) })
    }

    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
        if let Some(s) = table::sock(fd) {
            guarded(|| {
                life::hand_over(s, fd, Reason::Exec);
            });
        }
        // SAFETY: the program's arguments.
        unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, new) }
    }

    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        let restricts = option == libc::PR_SET_SECCOMP && b != 0;
        // SAFETY: the program's arguments.
        restricting(restricts, || unsafe { real::prctl(option, a, b, c, d) })
    }

    fn sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        if !action.is_null() {
            signals::changed();
        }
        // SAFETY: the program's arguments.
        unsafe { real::sigaction(signal, action, old) }
    }

    fn signal(signal: c_int, handler: usize) -> usize {
        signals::changed();
        // SAFETY: the program's arguments.
        unsafe { real::signal(signal, handler) }
    }

    fn siginterrupt(signal: c_int, flag: c_int) -> c_int {
        signals::changed();
        // SAFETY: the program's arguments.
        unsafe { real::siginterrupt(signal, flag) }
    }
}

/// A call after which the process may be killed for system calls that it made before: what sleeping
/// needs is made now, and nothing is set up afterwards.
pub fn restricting<R: PartialEq + From<u8>>(does: bool, call: impl FnOnce() -> R) -> R {
    if does {
        guarded(|| {
            table::apart::leave();
            spin::is_single_cpu();
            if table::range(0, u32::MAX).next().is_some() {
                wait::thread_waiter();
                control::wake::descriptor();
            }
        });
    }
    let r = call();
    if does && r == R::from(0) {
        control::restrict();
    }
    r
}

/// posix_spawn with what stands around it; `call` gets where the number of the program goes.
fn spawning(pid: *mut pid_t, call: impl FnOnce(*mut pid_t) -> c_int) -> c_int {
    let place = crate::sys::caught(forks::before_spawn).flatten();
    let mut own = 0;
    let to = if pid.is_null() { &raw mut own } else { pid };
    let r = call(to);
    if let Some(place) = place {
        // SAFETY: the program's variable, or our own.
        place.started(if r == 0 { unsafe { *to }.cast_unsigned() } else { 0 });
    }
    r
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// What the variants of exec without an argument for it pass on.
fn environment() -> *const *const c_char {
    // SAFETY: libc's variable, read as exec itself does.
    unsafe { environ }
}

fn before_exec(envp: *const *const c_char) {
    // SAFETY: the environment that the program gives to exec.
    guarded(|| forks::before_exec(|| unsafe { config::is_in(envp) }));
}

/// exec came back.
fn failed(r: c_int) -> c_int {
    let e = crate::sys::errno();
    guarded(forks::exec_failed);
    crate::sys::set_errno(e);
    r
}

fn after_fork(pid: pid_t) {
    guarded(|| match pid {
        0 => forks::in_child(),
        -1 => forks::fork_failed(),
        child => forks::in_parent(child as u32),
    });
}

/// clone(2) with the parent's memory but not as a thread: what vfork is. Its arguments are on their way to
/// the real function; the third are the flags.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
/// # Safety
/// As for the function of this name in libc.
pub unsafe extern "C" fn clone() {
    core::arch::naked_asm!(
        "mov eax, edx",
        "and eax, {both}",
        "cmp eax, {memory}",
        "jne 2f",
        "mov byte ptr [rip + {mark}], 1",
        "2: jmp qword ptr [rip + {real}]",
        both = const libc::CLONE_VM | libc::CLONE_THREAD,
        memory = const libc::CLONE_VM,
        mark = sym crate::family::process::SMCR_VFORK_USED,
        real = sym real::slot::clone,
    )
}

/// vfork returns twice in one frame, so the hook is a jump: it notes that the process uses vfork (from
/// then on the table asks whether it runs in such a child) and goes on in the real function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
/// # Safety
/// As for the function of this name in libc.
pub unsafe extern "C" fn vfork() {
    core::arch::naked_asm!(
        "mov byte ptr [rip + {mark}], 1",
        "jmp qword ptr [rip + {real}]",
        mark = sym crate::family::process::SMCR_VFORK_USED,
        real = sym real::slot::vfork,
    )
}
