//! Processes and threads: ids, whether one lives, yielding, random bytes, CPU number.

use super::{Errno, Res, Sysno, call};

/// getpid(2), asked of the kernel: right also in a vfork child.
pub fn pid() -> u32 {
    // SAFETY: no pointers.
    unsafe { call(Sysno::getpid, [0; 6]) }.unwrap_or(0) as u32
}

/// gettid(2).
pub fn tid() -> u32 {
    // SAFETY: no pointers.
    unsafe { call(Sysno::gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// geteuid(2).
pub fn euid() -> u32 {
    // SAFETY: no pointers.
    unsafe { call(Sysno::geteuid, [0; 6]) }.unwrap_or(u32::MAX as usize) as u32
}

/// Whether this process was forked by one of another PID namespace: neither knows the other by number.
pub fn is_first_here() -> bool {
    // SAFETY: no pointers.
    let parent = unsafe { call(Sysno::getppid, [0; 6]) };
    parent == Ok(0)
}

/// Whether a child that this thread forks now will be in another PID namespace than this process (unshare(2), setns(2)). Not where /proc
/// does not say so.
pub fn children_are_elsewhere() -> bool {
    let theirs = c"/proc/thread-self/ns/pid_for_children";
    let of = |path| super::fd::stat_path(path, true).map(|st| st.st_ino);
    match (of(c"/proc/thread-self/ns/pid"), of(theirs)) {
        (Ok(own), Ok(theirs)) => own != theirs,
        // One that has no process yet is not there to be looked at (pidns_for_children_get).
        (Ok(_), Err(Errno(libc::ENOENT))) => super::fd::stat_path(theirs, false).is_ok(),
        _ => false,
    }
}

/// pidfd_open(2): readable when the process has ended.
pub fn pidfd(id: u32) -> Res<i32> {
    // SAFETY: no pointers.
    unsafe { call(Sysno::pidfd_open, [id as usize, 0, 0, 0, 0, 0]) }.map(|fd| fd as i32)
}

/// The id of the process that a pidfd stands for; 0: it was waited for. None: that is not to be known.
pub fn of_pidfd(pidfd: i32) -> Option<u32> {
    let id = |line: &[u8]| line.strip_prefix(b"Pid:").and_then(|rest| std::str::from_utf8(rest).ok()?.trim().parse::<i32>().ok());
    Some(u32::try_from(super::lines::find_of(pidfd, id).ok()??).unwrap_or(0))
}

/// Whether a process or thread with this id exists.
fn exists(id: u32) -> bool {
    // SAFETY: signal 0 only checks.
    let r = unsafe { call(Sysno::kill, [id as usize, 0, 0, 0, 0, 0]) };
    if r != Err(Errno(libc::ESRCH)) {
        return true;
    }
    // kill(2) takes process ids; a thread id of another process is found by tkill only.
    // SAFETY: signal 0 only checks.
    let t = unsafe { call(Sysno::tkill, [id as usize, 0, 0, 0, 0, 0]) };
    t != Err(Errno(libc::ESRCH))
}

/// Whether nobody with this id will do anything more: it is not there, or has ended and waits for its parent, or for the kernel
/// to take it away. Right from the moment on in which its pidfd is readable: it may go while this looks.
pub fn is_gone(id: u32) -> bool {
    !exists(id) || has_ended(id).unwrap_or_else(|| !exists(id))
}

/// Whether a process has ended although its number stands: it holds nothing more. None: that can't be read.
/// One whose first thread alone has ended goes on in the others.
fn has_ended(id: u32) -> Option<bool> {
    let mut path = [0; 24];
    let path = super::fd::path(&mut path, format_args!("/proc/{id}/stat\0"))?;
    let mut buf = [0u8; 1024];
    let text = super::fd::read_file(path, &mut buf).ok()?;
    let end = text.iter().rposition(|b| *b == b')')?;
    let mut fields = text[end + 1..].split(|b| *b == b' ').filter(|f| !f.is_empty());
    match fields.next()? {
        b"Z" => Some(matches!(fields.nth(16), Some(b"0" | b"1"))),
        state => Some(state == b"X"), // nobody waits for it
    }
}

/// Ends this process at once, as SIGKILL does.
#[cfg(feature = "faults")]
pub fn kill_self() {
    // SAFETY: no pointers.
    let _ = unsafe { call(Sysno::kill, [pid() as usize, libc::SIGKILL as usize, 0, 0, 0, 0]) };
}

/// Raises a signal for the calling thread. Whether the kernel has taken it.
pub fn raise(signal: libc::c_int) -> bool {
    // SAFETY: no pointers.
    unsafe { call(Sysno::tgkill, [pid() as usize, tid() as usize, signal as usize, 0, 0, 0]) }.is_ok()
}

/// Raises SIGPIPE for the calling thread as the kernel's own send does: it comes from this process (SI_USER), where [`raise`] says SI_TKILL.
pub fn break_pipe() {
    const SI_USER: u32 = 0;
    // SAFETY: no pointers.
    let uid = unsafe { call(Sysno::getuid, [0; 6]) }.unwrap_or(0) as u32;
    let mut info = [0u32; 32];
    info[..6].copy_from_slice(&[libc::SIGPIPE as u32, 0, SI_USER, 0, pid(), uid]);
    // SAFETY: the kernel's siginfo has 128 bytes, and begins with number, errno and code; behind it the sender's process and user.
    let told = unsafe { call(Sysno::rt_tgsigqueueinfo, [pid() as usize, tid() as usize, libc::SIGPIPE as usize, info.as_ptr() as usize, 0, 0]) };
    if told.is_err() {
        raise(libc::SIGPIPE);
    }
}

/// Sends a signal as the kernel does to the owner of a socket (F_SETOWN): a process, or a group below 0.
pub fn signal_owner(owner: libc::c_int, signal: libc::c_int) {
    if owner != 0 {
        // SAFETY: no pointers.
        let _ = unsafe { call(Sysno::kill, [owner as usize, signal as usize, 0, 0, 0, 0]) };
    }
}

static SINGLE: std::sync::atomic::AtomicPtr<u8> = std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());

/// Finds glibc's mark of a process without threads; called by the constructor.
pub fn start() {
    // SAFETY: a NUL-terminated name; the symbol is a byte of glibc (2.32 and later).
    let p = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE.store(p.cast(), std::sync::atomic::Ordering::Relaxed);
}

/// Whether the process has, or had, more than one thread.
pub fn has_threads() -> bool {
    let p = SINGLE.load(std::sync::atomic::Ordering::Relaxed);
    // SAFETY: null or glibc's byte, written by glibc only.
    p.is_null() || unsafe { p.read_volatile() } == 0
}

/// Major and minor number of the running kernel; (0, 0) where it does not say.
pub fn kernel_release() -> (u32, u32) {
    let mut names = std::mem::MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the kernel fills the struct, for which zero bytes are valid.
    let names = unsafe {
        if call(Sysno::uname, [names.as_mut_ptr() as usize, 0, 0, 0, 0, 0]).is_err() {
            return (0, 0);
        }
        names.assume_init()
    };
    let mut numbers = names
        .release
        .split(|c| !(*c as u8).is_ascii_digit())
        .map(|digits| digits.iter().fold(0u32, |n, c| n.wrapping_mul(10).wrapping_add(u32::from(*c as u8 - b'0'))));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The soft limit of a resource; None: no limit, or not known.
pub fn limit(resource: usize) -> Option<u64> {
    let mut l = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let args = [0, resource, 0, std::ptr::from_mut(&mut l) as usize, 0, 0];
    // SAFETY: the kernel writes one struct of this layout.
    unsafe { call(Sysno::prlimit64, args) }.ok()?;
    (l.rlim_cur != libc::RLIM64_INFINITY).then_some(l.rlim_cur)
}

/// The soft limit of descriptors; None: no limit, or not known.
pub fn descriptor_limit() -> Option<u64> {
    limit(libc::RLIMIT_NOFILE as usize)
}

/// sched_yield(2).
pub fn yield_now() {
    // SAFETY: no pointers.
    let _ = unsafe { call(Sysno::sched_yield, [0; 6]) };
}

/// Waits for another thread that is through in a moment: spins, lets others run, and sleeps in the end, up to a millisecond at
/// once. A thread that may not be displaced (SCHED_FIFO) would keep one of lower priority from being through for ever by yielding.
#[derive(Default)]
pub struct Pause {
    rounds: u32,
    naps: u32,
}

impl Pause {
    const SPINS: u32 = 64;
    const YIELDS: u32 = 128;
    const SHORTEST_US: u32 = 50;
    const LONGEST_US: u32 = 1000;

    /// One round; true if it slept.
    pub fn turn(&mut self) -> bool {
        if self.rounds < Pause::SPINS * Pause::YIELDS {
            self.rounds += 1;
            if self.rounds.is_multiple_of(Pause::SPINS) {
                yield_now();
            } else {
                std::hint::spin_loop();
            }
            return false;
        }
        nap((Pause::SHORTEST_US << self.naps).min(Pause::LONGEST_US));
        self.naps = (self.naps + 1).min(5);
        true
    }
}

/// Sleeps for so many microseconds, or until a signal comes.
fn nap(us: u32) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(us) * 1000 };
    // SAFETY: no descriptors; the time outlives the call.
    let _ = unsafe { call(Sysno::ppoll, [0, 0, &raw const time as usize, 0, 8, 0]) };
}

/// Random bytes from the kernel.
pub fn random<const N: usize>() -> Res<[u8; N]> {
    let mut b = [0u8; N];
    // SAFETY: the kernel writes at most N bytes.
    let n = unsafe { call(Sysno::getrandom, [b.as_mut_ptr() as usize, N, 0, 0, 0, 0]) }?;
    if n == N { Ok(b) } else { Err(Errno(libc::EAGAIN)) }
}

/// Start time of this process in clock ticks since boot; 0 where /proc is not there.
pub fn start_time() -> u64 {
    let mut buf = [0u8; 1024];
    let Ok(text) = super::fd::read_file(c"/proc/self/stat", &mut buf) else { return 0 };
    // The name in parentheses may hold anything; the fields after it are numbers.
    let Some(end) = text.iter().rposition(|b| *b == b')') else { return 0 };
    let mut fields = text[end + 1..].split(|b| *b == b' ').filter(|f| !f.is_empty());
    fields.nth(19).map_or(0, |f| f.iter().take_while(|b| b.is_ascii_digit()).fold(0, |n, b| n * 10 + u64::from(b - b'0')))
}

/// Name of the program (prctl PR_GET_NAME), NUL padded.
pub fn name() -> [u8; 16] {
    let mut b = [0u8; 16];
    // SAFETY: the kernel writes 16 bytes.
    let _ = unsafe { call(Sysno::prctl, [libc::PR_GET_NAME as usize, b.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    b
}

/// File name of the program, without directories, as much as fits; the thread's name without /proc.
pub fn program(buf: &mut [u8; 256]) -> usize {
    let mut path = [0u8; 1024];
    let link = c"/proc/self/exe".as_ptr() as usize;
    let args = [libc::AT_FDCWD as usize, link, path.as_mut_ptr() as usize, path.len(), 0, 0];
    // SAFETY: the kernel writes at most `path.len()` bytes; the path is NUL-terminated.
    let n = unsafe { call(Sysno::readlinkat, args) }.unwrap_or(0).min(path.len());
    let whole = path[..n].strip_suffix(b" (deleted)").unwrap_or(&path[..n]);
    let mut own = name();
    let file = match whole.rsplit(|b| *b == b'/').next() {
        Some(file) if !file.is_empty() => file,
        _ => {
            let end = own.iter().position(|b| *b == 0).unwrap_or(own.len());
            &mut own[..end]
        }
    };
    let n = file.len().min(buf.len());
    buf[..n].copy_from_slice(&file[..n]);
    n
}

/// The kernel's action of a signal: handler address and flags.
pub fn signal_action(signal: i32) -> Option<(usize, u64)> {
    // struct kernel_sigaction on x86-64 and aarch64 (no restorer there): handler, flags, ...
    let mut raw = [0usize; 4];
    // SAFETY: the kernel writes at most 32 bytes with a mask of 8.
    unsafe {
        call(Sysno::rt_sigaction, [signal as usize, 0, raw.as_mut_ptr() as usize, 8, 0, 0]).ok()?;
    }
    Some((raw[0], raw[1] as u64))
}

/// By which glibc has each thread change its user in setuid and the like, where it waits for all of them.
const SETXID: u32 = 33;

/// Faults and ends of the program itself: they come again at once, and who handles them may look at the stack.
pub const FAULTS: [libc::c_int; 7] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// All signals that may be blocked for long.
pub const BLOCKABLE: u64 = !(1 << (SETXID - 1));

/// Runs `f` with all signals blocked: a thread made in it never runs a handler of the program.
pub fn with_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
    let before = block_signals(BLOCKABLE);
    let result = f();
    block_signals(before);
    result
}

/// The calling thread's blocked signals from now on, a bit each. Gives those before.
pub fn block_signals(set: u64) -> u64 {
    let mut before = 0u64;
    let args = [libc::SIG_SETMASK as usize, &raw const set as usize, &raw mut before as usize, 8, 0, 0];
    // SAFETY: both sets are valid and have the kernel's size.
    let _ = unsafe { call(Sysno::rt_sigprocmask, args) };
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pidfd_tells_its_process() {
        let own = pidfd(pid()).expect("a pidfd");
        assert_eq!(of_pidfd(own), Some(pid()));
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let of_child = pidfd(child.id()).expect("a pidfd");
        assert_eq!(of_pidfd(of_child), Some(child.id()));
        child.wait().expect("its status");
        assert_eq!(of_pidfd(of_child), Some(0));
        [own, of_child].into_iter().for_each(crate::sys::fd::close);
        assert_eq!(of_pidfd(own), None);
    }

    #[test]
    fn a_child_is_a_zombie_until_it_is_waited_for() {
        assert!(has_ended(pid()) == Some(false) && !is_gone(pid()));
        assert!(has_ended(u32::MAX).is_none());
        let mut child = std::process::Command::new("true").spawn().expect("true");
        let id = child.id();
        let ends = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while has_ended(id) != Some(true) {
            assert!(std::time::Instant::now() < ends, "it did not end");
            std::thread::yield_now();
        }
        assert!(exists(id) && is_gone(id));
        child.wait().expect("its status");
        assert!(has_ended(id).is_none() && is_gone(id));
    }

    /// Where nobody waits for children (SIGCHLD ignored), they are on their way out when their pidfds become readable.
    #[test]
    fn a_child_is_gone_when_its_pidfd_says_so() {
        const CHILDREN: usize = 2000;
        // SAFETY: the child, and its children, make system calls only.
        let parent = unsafe { libc::fork() };
        if parent == 0 {
            // SAFETY: as above.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            let mut seen = 0;
            for _ in 0..CHILDREN {
                // SAFETY: as above.
                unsafe {
                    let id = libc::fork();
                    if id == 0 {
                        libc::usleep(100);
                        libc::_exit(0);
                    }
                    let Ok(own) = pidfd(id as u32) else { continue };
                    libc::poll(&mut libc::pollfd { fd: own, events: libc::POLLIN, revents: 0 }, 1, -1);
                    if !is_gone(id as u32) {
                        libc::_exit(1);
                    }
                    libc::close(own);
                }
                seen += 1;
            }
            // SAFETY: as above.
            unsafe { libc::_exit(if seen > CHILDREN / 2 { 0 } else { 2 }) };
        }
        let mut status = -1;
        // SAFETY: a child of ours, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(parent, &mut status, 0) }, parent);
        assert_eq!(status, 0, "a child that has ended lives, or there were few (exit 2)");
    }
}
