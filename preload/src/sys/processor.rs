//! What kind of processor it is, where that decides how something is done. `transport::copy` and `engine::bulk` ask.

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
    use super::family;

    #[test]
    fn families_are_read_as_the_manual_says() {
        assert_eq!(family(0x00b0_0f21), 0x1a); // an EPYC of Zen 5
        assert_eq!(family(0x00a1_0f11), 0x19); // of Zen 4
        assert_eq!(family(0x0005_0657), 6); // a Xeon of Cascade Lake
    }
}
