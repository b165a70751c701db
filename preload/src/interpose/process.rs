//! fork and what does the same inside libc, exec and signal handlers: what they mean for connections.
//!
//! system(3) and popen(3) run no hook in the child and leave the parent's connections alone (and start a shell, which accepts
//! nothing); posix_spawn: [`super::spawns`]. The exec variants with variable arguments are in [`super::execl`].

use super::{guarded, hooks};
use crate::control;
use crate::engine::{handlers, signals};
use crate::family::process::is_vfork_child;
use crate::ready::leave;
use crate::sys::filter;
use crate::table::{apart, child, confine, forks};
use crate::{config, real};
use libc::{c_char, c_int, c_ulong, c_void, pid_t};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

hooks! {
    fn fork() -> pid_t {
        // SAFETY: no arguments.
        let pid = forking(0, || unsafe { real::fork() });
        if pid == 0 {
            present(child::inherit);
        }
        pid
    }

    fn _Fork() -> pid_t {
        // SAFETY: no arguments.
        forking(0, || unsafe { real::_Fork() })
    }

    fn daemon(stays: c_int, keeps: c_int) -> c_int {
        // SAFETY: the program's arguments.
        forking(0, || unsafe { real::daemon(stays, keeps) })
    }

    fn forkpty(terminal: *mut c_int, name: *mut c_char, settings: *const c_void, size: *const c_void) -> pid_t {
        // SAFETY: the program's arguments.
        forking(0, || unsafe { real::forkpty(terminal, name, settings, size) })
    }

    fn _exit(status: c_int) {
        present(forks::at_end);
        // SAFETY: the program's argument.
        unsafe { real::_exit(status) }
    }

    fn _Exit(status: c_int) {
        // SAFETY: the same function by C's name.
        unsafe { _exit(status) }
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

    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        let how = match (option, a as u32) {
            (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) => Restriction::Strict,
            (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER) => Restriction::Filter(b as *const c_void),
            _ => Restriction::None,
        };
        // SAFETY: the program's arguments.
        unsafe { restricting(how, || real::prctl(option, a, b, c, d)) }
    }

    fn sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        // SAFETY: the program's arguments.
        unsafe { set_action(signal, action, old) }
    }

    fn signal(signal: c_int, handler: usize) -> usize {
        // SAFETY: the program's arguments.
        setting(signal, handler, |handler| unsafe { real::signal(signal, handler) })
    }

    fn bsd_signal(signal: c_int, handler: usize) -> usize {
        // SAFETY: the program's arguments.
        setting(signal, handler, |handler| unsafe { real::bsd_signal(signal, handler) })
    }

    fn ssignal(signal: c_int, handler: usize) -> usize {
        // SAFETY: the program's arguments.
        setting(signal, handler, |handler| unsafe { real::ssignal(signal, handler) })
    }

    fn sysv_signal(signal: c_int, handler: usize) -> usize {
        // SAFETY: the program's arguments.
        setting(signal, handler, |handler| unsafe { real::sysv_signal(signal, handler) })
    }

    fn __sysv_signal(signal: c_int, handler: usize) -> usize {
        // SAFETY: the program's arguments.
        setting(signal, handler, |handler| unsafe { real::__sysv_signal(signal, handler) })
    }

    fn sigset(signal: c_int, handler: usize) -> usize {
        // SAFETY: the program's arguments.
        setting(signal, handler, |handler| unsafe { real::sigset(signal, handler) })
    }

    fn siginterrupt(signal: c_int, flag: c_int) -> c_int {
        // SAFETY: the program's arguments.
        noted(signal, unsafe { real::siginterrupt(signal, flag) })
    }
}

/// sigaction(2), with [`handlers`] between.
///
/// # Safety
/// As for sigaction(2).
unsafe fn set_action(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let setting = handlers::Setting::of(signal);
    // SAFETY: null or the program's.
    let given = unsafe { action.as_ref() }.map(|action| {
        let mut given = *action;
        given.sa_sigaction = setting.to_kernel(given.sa_sigaction);
        given
    });
    // SAFETY: as the program's, but for the handler.
    let r = unsafe { real::sigaction(signal, given.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), old) };
    if r != 0 {
        if given.is_some() {
            setting.undo();
        }
        return r;
    }
    // SAFETY: null or filled in by the call.
    if let Some(old) = unsafe { old.as_mut() } {
        old.sa_sigaction = setting.to_program(old.sa_sigaction);
    }
    if given.is_some() {
        signals::changed(signal);
    }
    r
}

/// The same for signal(2) and its relatives, which return the handler before.
fn setting(signal: c_int, handler: usize, set: impl FnOnce(usize) -> usize) -> usize {
    let setting = handlers::Setting::of(signal);
    let before = set(setting.to_kernel(handler));
    if before == libc::SIG_ERR {
        setting.undo();
    }
    noted(signal, setting.to_program(before))
}

/// A handler has been set.
fn noted<R>(signal: c_int, r: R) -> R {
    let e = crate::sys::errno();
    signals::changed(signal);
    crate::sys::set_errno(e);
    r
}

/// As [`guarded`], unless the library has withdrawn from the process.
pub fn present(f: impl FnOnce()) {
    if !control::is_withdrawn() {
        guarded(f);
    }
}

/// What a call does to the system calls of the process.
pub enum Restriction {
    /// Nothing.
    None,
    /// Read, write and exit are left.
    Strict,
    /// A filter, or what the program takes for one.
    Filter(*const c_void),
}

/// A call after which the process may be killed for system calls that it made before: either what sleeping needs is made
/// now, and nothing is set up afterwards, or the library withdraws.
///
/// # Safety
/// A filter must be the program's argument.
pub unsafe fn restricting<R: PartialEq + From<u8>>(how: Restriction, call: impl FnOnce() -> R) -> R {
    if control::is_withdrawn() || is_vfork_child() {
        return call();
    }
    let filter = match how {
        Restriction::None => return call(),
        Restriction::Strict => None,
        // SAFETY: by the contract.
        Restriction::Filter(program) => match unsafe { filter::parse(program) } {
            None => return call(), // the kernel refuses it
            filter => filter,
        },
    };
    guarded(|| {
        apart::leave();
        if confine::is_permitted(filter) {
            return confine::prepare();
        }
        confine::leave_memory();
        leave::give_back();
        confine::forget_all();
        control::withdraw();
    });
    let r = call();
    if r == R::from(0) {
        control::restrict();
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
    present(|| forks::before_exec(|| unsafe { config::is_in(envp) }));
    present(leave::before_exec);
}

/// exec came back.
fn failed(r: c_int) -> c_int {
    let e = crate::sys::errno();
    present(leave::exec_failed);
    present(forks::exec_failed); // which wakes who sleeps
    crate::sys::set_errno(e);
    r
}

/// Forks that this process and those before it have come out of as a child, by fork(3).
static BEGUN: AtomicU32 = AtomicU32::new(0);

/// In the child of libc's fork, whoever called that, before the handlers of the program: those may close what they find.
pub extern "C" fn begins() {
    BEGUN.fetch_add(1, Relaxed);
    present(child::in_child);
}

/// A child with memory of its own, which `make` makes: fork, and what does the same. `flags` are those of clone(2).
pub fn forking(flags: u64, make: impl FnOnce() -> pid_t) -> pid_t {
    let begun = BEGUN.load(Relaxed);
    let mut fork = None;
    present(|| fork = Some(child::before_fork(flags & libc::CLONE_NEWPID as u64 != 0)));
    let pid = make();
    if BEGUN.load(Relaxed) != begun {
        present(child::introduce); // a daemon may have failed behind its fork
    } else if pid == 0 {
        in_child();
    } else if let Some(fork) = fork {
        guarded(|| child::in_parent(&fork, u32::try_from(pid).ok()));
    }
    pid
}

/// In a child that libc knows nothing of.
pub fn in_child() {
    present(child::in_child);
    present(child::introduce);
}
