//! Settings in the form that hot paths want: one load each.
//!
//! The constructor reads the environment. What it has in common with the control pages is parsed by
//! `proto::control` and kept by `control`, which puts the resolved values here ([`apply`]) as often as
//! a page changes. The rest is the library's own: SMCR_RING, SMCR_FLIP, SMCR_LOG, SMCR_LOG_FILE.

use crate::sys::{cgroup, clock};
use crate::{control, log};
use smcr_proto::control::{Attribute, Policy, text};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::*};

static ENABLED: AtomicBool = AtomicBool::new(false);
/// Whether our own environment names the library.
static NAMED: AtomicBool = AtomicBool::new(false);
static STRICT: AtomicBool = AtomicBool::new(false);
static SPIN_US: AtomicU32 = AtomicU32::new(50);
static LEARNS: AtomicBool = AtomicBool::new(true);
static SWITCH_OPS: AtomicU32 = AtomicU32::new(16);
static SWITCH_BYTES: AtomicU64 = AtomicU64::new(64 * 1024);
/// MiB.
static MAX_MEMORY: AtomicU64 = AtomicU64::new(4096);
/// 0: nobody has said.
static RING: AtomicU32 = AtomicU32::new(0);
static FLIP: AtomicU32 = AtomicU32::new(0);
static FLIP_SEED: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);

/// Whether sockets are tracked at all: unless the environment says SMCR_ENABLE=0, over which no page
/// has power. What the pages say is asked for each connection (`control::decide`).
#[inline]
pub fn enabled() -> bool {
    ENABLED.load(Relaxed)
}

/// No socket is tracked any more.
pub fn withdraw() {
    ENABLED.store(false, Relaxed);
}

/// Whether a program that is started with this environment has the library too: it is named there, or was
/// not named in our own (/etc/ld.so.preload).
///
/// # Safety
/// `envp` must be null or as for [`read`].
pub unsafe fn is_in(envp: *const *const libc::c_char) -> bool {
    // SAFETY: by the contract.
    !NAMED.load(Relaxed) || unsafe { entries(envp) }.any(names_us)
}

fn names_us(entry: &CStr) -> bool {
    entry.to_bytes().strip_prefix(b"LD_PRELOAD=").is_some_and(|v| v.windows(NAME.len()).any(|w| w == NAME))
}

/// What the library's file is called, wherever it lies.
const NAME: &[u8] = b"libsmcr";

/// The strings of an environment.
///
/// # Safety
/// `at` must be null or as for [`read`].
unsafe fn entries(mut at: *const *const libc::c_char) -> impl Iterator<Item = &'static CStr> {
    std::iter::from_fn(move || {
        // SAFETY: by the contract; nothing behind the NULL is looked at.
        unsafe {
            let entry = at.as_ref()?;
            if entry.is_null() {
                return None;
            }
            at = at.add(1);
            Some(CStr::from_ptr(*entry))
        }
    })
}

/// Whether a fallback of an eligible connection is an error.
pub fn strict() -> bool {
    STRICT.load(Relaxed)
}

/// Limit of polling before a sleep.
#[inline]
pub fn spin_us() -> u32 {
    SPIN_US.load(Relaxed)
}

/// Operations after which an accepted connection is announced.
pub fn switch_ops() -> u32 {
    SWITCH_OPS.load(Relaxed)
}

/// Whether these may be raised for a port: not those that somebody has set.
pub fn learns() -> bool {
    LEARNS.load(Relaxed)
}

/// Bytes after which an accepted connection is announced.
pub fn switch_bytes() -> u64 {
    SWITCH_BYTES.load(Relaxed)
}

/// Limit of shared memory mapped by this process, in bytes. Never more than a quarter of what the control
/// group has: one that is full kills, and natively the program would have lived.
pub fn max_memory() -> u64 {
    (MAX_MEMORY.load(Relaxed) << 20).min(group_share())
}

fn group_share() -> u64 {
    static SHARE: AtomicU64 = AtomicU64::new(0);
    match SHARE.load(Relaxed) {
        0 => {
            let share = cgroup::memory_limit().map_or(u64::MAX, |limit| (limit / 4).max(1));
            SHARE.store(share, Relaxed);
            share
        }
        known => known,
    }
}

/// Bytes of a new ring, where the environment says them.
pub fn ring_size() -> Option<usize> {
    Some(RING.load(Relaxed) as usize).filter(|n| *n > 0)
}

/// Test mode: whether connections change their medium at random.
#[inline]
pub fn flips() -> bool {
    flip_mean() != 0
}

/// Mean number of bytes between two such changes; 0 = none.
#[inline]
pub fn flip_mean() -> u32 {
    FLIP.load(Relaxed)
}

/// Draws the number of bytes until the next flip.
pub fn arm_flip(left: &AtomicI64) {
    let mean = u64::from(FLIP.load(Relaxed));
    if mean > 0 {
        left.store((clock::mix(&FLIP_SEED) % (2 * mean)) as i64 + 1, Relaxed);
    }
}

/// Takes over what a policy says.
pub fn apply(policy: &Policy) {
    STRICT.store(policy.strict, Relaxed);
    SPIN_US.store(policy.spin_us, Relaxed);
    let own = Policy::default();
    LEARNS.store((policy.switch_ops, policy.switch_bytes) == (own.switch_ops, own.switch_bytes), Relaxed);
    SWITCH_OPS.store(policy.switch_ops, Relaxed);
    SWITCH_BYTES.store(policy.switch_bytes, Relaxed);
    MAX_MEMORY.store(u64::from(policy.max_memory), Relaxed);
}

/// Variables as the environment block has them: of two with one name the first holds, as for getenv.
#[derive(Default)]
struct Found {
    shared: [Option<&'static str>; Attribute::ALL.len()],
    ring: Option<&'static str>,
    flip: Option<&'static str>,
    log: Option<&'static str>,
    log_file: Option<&'static CStr>,
    runtime_dir: Option<&'static CStr>,
    home: Option<&'static CStr>,
}

impl Found {
    fn add(&mut self, entry: &'static CStr) {
        let bytes = entry.to_bytes_with_nul();
        // The rest of a NUL-terminated string is one.
        let tail = |from: usize| bytes.get(from..).and_then(|b| CStr::from_bytes_with_nul(b).ok());
        let path = |name: &str| bytes.starts_with(name.as_bytes()).then(|| tail(name.len())).flatten();
        if bytes.starts_with(b"SMCR_LOG_FILE=") {
            self.log_file = self.log_file.or_else(|| path("SMCR_LOG_FILE="));
        } else if let Some(rest) = entry.to_bytes().strip_prefix(b"SMCR_") {
            let Ok(text) = std::str::from_utf8(rest) else { return unreadable(rest) };
            let Some((name, value)) = text.split_once('=') else { return };
            let own = match name {
                "RING" => &mut self.ring,
                "FLIP" => &mut self.flip,
                #[cfg(feature = "faults")]
                "FAULTS" => return crate::fault::start(value),
                #[cfg(feature = "faults")]
                "FAIL" => return crate::fault::fail(value),
                #[cfg(feature = "faults")]
                "HOLD" => return crate::fault::hold(value),
                #[cfg(feature = "faults")]
                "FORGE" => return crate::fault::plan_forgery(value),
                #[cfg(feature = "faults")]
                "STRANGERS" => return crate::fault::make_strangers(value),
                #[cfg(feature = "faults")]
                "LENIENT" => return crate::fault::make_lenient(value),
                #[cfg(feature = "faults")]
                "FAULT_COUNTS" => return path("SMCR_FAULT_COUNTS=").map_or((), crate::fault::count_in),
                "LOG" => &mut self.log,
                _ => match Attribute::ALL.iter().position(|a| is_named(*a, name)) {
                    Some(i) => &mut self.shared[i],
                    None => return,
                },
            };
            own.get_or_insert(value);
        } else if bytes.starts_with(b"XDG_RUNTIME_DIR=") {
            self.runtime_dir = self.runtime_dir.or_else(|| path("XDG_RUNTIME_DIR="));
        } else if bytes.starts_with(b"HOME=") {
            self.home = self.home.or_else(|| path("HOME="));
        }
    }
}

/// Whether this attribute's variable is SMCR_`name`.
fn is_named(attribute: Attribute, name: &str) -> bool {
    attribute.environment().and_then(|n| n.strip_prefix("SMCR_")) == Some(name)
}

/// Reads the environment block that the constructor was given.
///
/// # Safety
/// `envp` must be the process's environment: NULL-terminated, of NUL-terminated strings.
pub unsafe fn read(envp: *const *const libc::c_char) {
    let mut found = Found::default();
    // SAFETY: by the contract.
    for entry in unsafe { entries(envp) } {
        found.add(entry);
        if names_us(entry) {
            NAMED.store(true, Relaxed);
        }
    }
    if let Some(value) = found.ring {
        match ring(value) {
            Some(n) => RING.store(n, Relaxed),
            None => complain("SMCR_RING", value, "a number from 4096 to 262144"),
        }
    }
    if let Some(value) = found.flip {
        match flip(value) {
            Some((mean, seed)) => {
                FLIP.store(mean, Relaxed);
                FLIP_SEED.store(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, Relaxed);
            }
            None => complain("SMCR_FLIP", value, "MEAN_BYTES[,SEED]"),
        }
    }
    if let Some(value) = found.log {
        match log::Levels::parse(value) {
            Some(levels) if log::start(levels, found.log_file) => {}
            Some(_) if found.log_file.is_some() => log::complain(format_args!("SMCR_LOG_FILE cannot be opened; nothing is told")),
            Some(_) => log::complain(format_args!("SMCR_LOG finds no number for a copy of standard error; nothing is told")),
            None => complain("SMCR_LOG", value, "level[,target=level]: off error warn info debug trace"),
        }
    }
    control::remember_paths(found.runtime_dir, found.home);
    ENABLED.store(!shared(&found.shared), Relaxed);
}

/// What the environment has in common with the pages; true if it switches the library off.
fn shared(texts: &[Option<&'static str>; Attribute::ALL.len()]) -> bool {
    if texts.iter().all(Option::is_none) {
        return false;
    }
    let lookup = |name: &str| {
        let i = Attribute::ALL.iter().position(|a| a.environment() == Some(name))?;
        texts[i]
    };
    let layer = text::environment(lookup, |name, error| {
        log::complain(format_args!("{name} is not understood: {error}; using the default"));
    });
    let policy = smcr_proto::control::resolve(&[&layer]);
    apply(&policy);
    control::remember_environment(layer);
    !policy.enabled
}

/// Bytes of a new ring.
fn ring(value: &str) -> Option<u32> {
    let n = value.parse().ok().filter(|n| (4096..=256 * 1024).contains(n))?;
    Some(u32::next_power_of_two(n))
}

/// Mean number of bytes between two flips, and the seed.
fn flip(value: &str) -> Option<(u32, u64)> {
    let (mean, seed) = value.split_once(',').unwrap_or((value, "1"));
    Some((mean.parse::<u32>().ok()?.min(1 << 30), seed.parse().ok()?))
}

/// Of our variables one whose value is no text.
fn unreadable(entry: &[u8]) {
    let name = entry.split(|b| *b == b'=').next().and_then(|name| std::str::from_utf8(name).ok());
    let is_ours = |name: &&str| matches!(*name, "RING" | "FLIP" | "LOG") || Attribute::ALL.iter().any(|a| is_named(*a, name));
    if let Some(name) = name.filter(is_ours) {
        log::complain(format_args!("SMCR_{name} is not understood: it is no UTF-8; using the default"));
    }
}

fn complain(name: &str, value: &str, wanted: &str) {
    log::complain(format_args!("{name} is not understood: `{value}`: write {wanted}; using the default"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(entries: &[&'static CStr]) -> Found {
        let mut found = Found::default();
        entries.iter().for_each(|e| found.add(e));
        found
    }

    #[test]
    fn the_first_of_two_with_one_name_holds() {
        let f = found(&[
            c"SMCR_RING=1",
            c"SMCR_RING=2",
            c"SMCR_LOG_FILE=/a",
            c"SMCR_LOG_FILE=/b",
            c"SMCR_PORTS=1",
            c"SMCR_PORTS=2",
            c"HOME=/h",
            c"HOME=/i",
        ]);
        assert_eq!((f.ring, f.log_file, f.home), (Some("1"), Some(c"/a"), Some(c"/h")));
        assert_eq!(f.shared.iter().flatten().collect::<Vec<_>>(), [&"1"]);
    }

    #[test]
    fn other_names_are_nobodys() {
        let f = found(&[c"SMCR_RINGS=1", c"SMCR_", c"SMCR_LOG", c"SMCRLOG=debug", c"smcr_log=debug", c"XSMCR_LOG=debug", c""]);
        assert!(f.ring.is_none() && f.log.is_none() && f.flip.is_none() && f.shared.iter().all(Option::is_none));
    }

    /// A path need not be text, and everything else has to be.
    #[test]
    fn what_is_no_text() {
        let f = found(&[c"SMCR_LOG_FILE=/\xff", c"SMCR_LOG=debug\xff", c"SMCR_PORTS=\xff", c"SMCR_RING=4096"]);
        assert_eq!((f.log_file, f.log, f.ring), (Some(c"/\xff"), None, Some("4096")));
        assert!(f.shared.iter().all(Option::is_none));
    }

    #[test]
    fn sizes_of_rings() {
        for (text, size) in [("4096", 4096), ("4097", 8192), ("65536", 65_536), ("262144", 262_144)] {
            assert_eq!(ring(text), Some(size), "{text}");
        }
        for text in ["", "4095", "262145", "-1", "64k", "4294967297", " 4096"] {
            assert_eq!(ring(text), None, "{text}");
        }
    }

    #[test]
    fn flips_and_their_seeds() {
        assert_eq!((flip("0"), flip("5,7"), flip("4294967295,2")), (Some((0, 1)), Some((5, 7)), Some((1 << 30, 2))));
        for text in ["", ",", "5,", ",7", "5,7,9", "-5", "4294967296", "often"] {
            assert_eq!(flip(text), None, "{text}");
        }
    }
}
