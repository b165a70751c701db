//! What kind of processor it is, where that decides how something is done, how many are online, and whether that is enough. `transport::copy`, `engine::bulk`,
//! `engine::spin` and `rendezvous::aside` ask.

use super::fd;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Whether `rep movsb` is the fastest way into a cache line that another processor has, and out of one.
///
/// From AMD's Zen 5 on it is, by two to four times: the processor takes whole lines without what was in them. On Intel's
/// it is the slowest (docs/decisions/12-copies.md has what was measured on which).
#[inline]
pub fn stores_strings_well() -> bool {
    match KNOWN.load(Relaxed) {
        UNKNOWN => ask(),
        known => known == YES,
    }
}

/// How many processors are online; 2 where nobody says so. Not by sysconf(3), which leaves in errno what went wrong on its way.
pub fn online() -> u32 {
    let mut buf = [0u8; 4096];
    fd::read_file(c"/sys/devices/system/cpu/online", &mut buf).ok().and_then(listed).unwrap_or(2)
}

/// The number of those in a list such as "0-3,6", as Linux shows it (Documentation/admin-guide/cputopology.rst).
fn listed(text: &[u8]) -> Option<u32> {
    let mut all = 0u32;
    for range in std::str::from_utf8(text).ok()?.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        all = last.checked_sub(first)?.checked_add(1)?.checked_add(all)?;
    }
    Some(all)
}

/// Whether more threads would run now than there are processors. No where nobody says how many.
pub fn are_scarce() -> bool {
    let mut buf = [0u8; 128];
    let runnable = fd::read_file(c"/proc/loadavg", &mut buf).ok().and_then(runnable);
    runnable.is_some_and(|n| n > online())
}

/// The first number of the fourth field (proc_loadavg(5)).
fn runnable(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.split(' ').nth(3)?.split_once('/')?.0.parse().ok()
}

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;
/// Relaxed: whoever asks finds the same.
static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);

#[cold]
fn ask() -> bool {
    let found = is_zen_5_or_later();
    KNOWN.store(if found { YES } else { NO }, Relaxed);
    found
}

/// By AMD's manual (APM volume 3, appendix E): the vendor in leaf 0, the family in leaf 1, FSRM in leaf 7.
#[cfg(target_arch = "x86_64")]
fn is_zen_5_or_later() -> bool {
    use core::arch::x86_64::__cpuid_count;
    let leaf = |n| __cpuid_count(n, 0);
    let first = leaf(0);
    let vendor = [first.ebx, first.edx, first.ecx].map(u32::to_le_bytes);
    vendor.as_flattened() == b"AuthenticAMD" && first.eax >= 7 && family(leaf(1).eax) >= 0x1a && leaf(7).edx & 1 << 4 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_zen_5_or_later() -> bool {
    false
}

/// Of the signature in leaf 1.
#[cfg(any(target_arch = "x86_64", test))]
fn family(signature: u32) -> u32 {
    match signature >> 8 & 15 {
        15 => 15 + (signature >> 20 & 0xff),
        base => base,
    }
}

#[cfg(test)]
mod tests {
    use super::{family, listed, online, runnable};

    #[test]
    fn runnable_threads_are_counted() {
        assert_eq!(runnable(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        for wrong in ["", "0.20 0.18 0.12", "0.20 0.18 0.12 80 11206"] {
            assert_eq!(runnable(wrong.as_bytes()), None, "{wrong}");
        }
        let mut buf = [0u8; 128];
        let now = super::fd::read_file(c"/proc/loadavg", &mut buf).ok().and_then(runnable);
        assert!(now > Some(0), "this thread runs: {now:?}");
    }

    #[test]
    fn processors_are_counted() {
        assert_eq!(listed(b"0\n"), Some(1));
        assert_eq!(listed(b"0-3,6,8-9\n"), Some(7));
        for wrong in ["", "x", "3-1", "0-", "0-4294967295"] {
            assert_eq!(listed(wrong.as_bytes()), None, "{wrong}");
        }
        // SAFETY: a constant argument.
        assert_eq!(i64::from(online()), unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) });
    }

    #[test]
    fn families_are_read_as_the_manual_says() {
        assert_eq!(family(0x00b0_0f21), 0x1a); // an EPYC of Zen 5
        assert_eq!(family(0x00a1_0f11), 0x19); // of Zen 4
        assert_eq!(family(0x0005_0657), 6); // a Xeon of Cascade Lake
    }
}
