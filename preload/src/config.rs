//! Settings: the environment at start, and what the control pages change live.
//!
//! Read once by the constructor into atomics; every reader takes one load.

use crate::log;
use crate::sys::clock;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::*};

static ENABLED: AtomicBool = AtomicBool::new(false);
static STRICT: AtomicBool = AtomicBool::new(false);
static SPIN_US: AtomicU32 = AtomicU32::new(50);
static SWITCH_OPS: AtomicU32 = AtomicU32::new(16);
static SWITCH_BYTES: AtomicU64 = AtomicU64::new(64 * 1024);
/// MiB.
static MAX_MEMORY: AtomicU64 = AtomicU64::new(4096);
static RING: AtomicU32 = AtomicU32::new(64 * 1024);
static FLIP: AtomicU32 = AtomicU32::new(0);
static FLIP_SEED: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);

/// Whether sockets are tracked at all.
#[inline]
pub fn enabled() -> bool {
    ENABLED.load(Relaxed)
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

/// Bytes after which an accepted connection is announced.
pub fn switch_bytes() -> u64 {
    SWITCH_BYTES.load(Relaxed)
}

/// Limit of shared memory mapped by this process, in bytes.
pub fn max_memory() -> u64 {
    MAX_MEMORY.load(Relaxed) << 20
}

/// Bytes of a new ring.
pub fn ring_size() -> usize {
    RING.load(Relaxed) as usize
}

/// Test mode: whether connections change their medium at random.
#[inline]
pub fn flips() -> bool {
    FLIP.load(Relaxed) != 0
}

/// Draws the number of bytes until the next flip.
pub fn arm_flip(left: &AtomicI64) {
    let mean = u64::from(FLIP.load(Relaxed));
    if mean > 0 {
        left.store((clock::mix(&FLIP_SEED) % (2 * mean)) as i64 + 1, Relaxed);
    }
}

/// Reads the environment block that the constructor was given.
///
/// # Safety
/// `envp` must be the process's environment: NULL-terminated, of NUL-terminated strings.
pub unsafe fn read(envp: *const *const libc::c_char) {
    let mut on = true;
    let mut log_file = None;
    let mut levels = None;
    let mut at = envp;
    // SAFETY: by the contract.
    while !at.is_null() && unsafe { !(*at).is_null() } {
        // SAFETY: as above.
        let entry: &'static CStr = unsafe { CStr::from_ptr(*at) };
        // SAFETY: as above.
        at = unsafe { at.add(1) };
        let Some(rest) = entry.to_bytes().strip_prefix(b"SMCR_") else { continue };
        let Ok(text) = std::str::from_utf8(rest) else { continue };
        let Some((name, value)) = text.split_once('=') else { continue };
        match name {
            "ENABLE" => on = flag(name, value, true),
            "STRICT" => STRICT.store(flag(name, value, false), Relaxed),
            "SPIN_US" => number(name, value, 0, 100_000, |n| SPIN_US.store(n as u32, Relaxed)),
            "SWITCH_OPS" => number(name, value, 1, 1 << 30, |n| SWITCH_OPS.store(n as u32, Relaxed)),
            "SWITCH_BYTES" => number(name, value, 1, 1 << 50, |n| SWITCH_BYTES.store(n, Relaxed)),
            "MAX_MEMORY" => number(name, value, 0, 1 << 30, |n| MAX_MEMORY.store(n, Relaxed)),
            "RING" => number(name, value, 4096, 256 * 1024, |n| {
                RING.store((n as u32).next_power_of_two(), Relaxed);
            }),
            "FLIP" => flip(value),
            "LOG" => match log::Levels::parse(value) {
                Some(l) => levels = Some(l),
                None => complain(name, value, "level[,target=level]: off error warn info debug trace"),
            },
            "LOG_FILE" => {
                let off = entry.to_bytes().len() - value.len();
                // The rest of a NUL-terminated string is one.
                log_file = CStr::from_bytes_with_nul(&entry.to_bytes_with_nul()[off..]).ok();
            }
            _ => {}
        }
    }
    if let Some(l) = levels {
        log::start(l, log_file);
    }
    ENABLED.store(on, Relaxed);
}

fn flip(value: &str) {
    let (mean, seed) = value.split_once(',').unwrap_or((value, "1"));
    match (mean.parse::<u32>(), seed.parse::<u64>()) {
        (Ok(mean), Ok(seed)) => {
            FLIP.store(mean.min(1 << 30), Relaxed);
            FLIP_SEED.store(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, Relaxed);
        }
        _ => complain("FLIP", value, "MEAN_BYTES[,SEED]"),
    }
}

fn flag(name: &str, value: &str, default: bool) -> bool {
    match value {
        "1" | "on" | "yes" | "true" => true,
        "0" | "off" | "no" | "false" => false,
        _ => {
            complain(name, value, "0 or 1");
            default
        }
    }
}

fn number(name: &str, value: &str, least: u64, most: u64, set: impl FnOnce(u64)) {
    match value.parse::<u64>() {
        Ok(n) if (least..=most).contains(&n) => set(n),
        _ => complain(name, value, "a number in range"),
    }
}

fn complain(name: &str, value: &str, wanted: &str) {
    log::complain(&["SMCR_", name, "=", value, " is not understood (wanted: ", wanted, "); using the default"]);
}
