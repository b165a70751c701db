//! How bytes are copied into a ring and out of it ([`super::ring`]): by their number, and by what the processor does best
//! (docs/decisions/12-copies.md).

use crate::sys::{mem, processor};

/// 16 bytes in one register.
#[cfg(target_arch = "x86_64")]
type Wide = core::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Wide = u128;

/// From so many bytes on what is copied is not left to libc, whose choice is made for one processor.
pub const MUCH: usize = if cfg!(target_arch = "x86_64") { 4096 } else { usize::MAX };

/// Copies `n` bytes: up to 64 in place, in halves that may overlap; much of it as the processor likes it; the rest by libc.
///
/// # Safety
/// Both valid for `n` bytes, not overlapping.
#[inline(always)]
pub unsafe fn copy(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: each case moves bytes below `n` only.
    unsafe {
        match n {
            33..=64 => {
                let (from, to) = (src.cast::<Wide>(), dst.cast::<Wide>());
                let (from_end, to_end) = (src.add(n).cast::<Wide>(), dst.add(n).cast::<Wide>());
                let (a, b) = (from.read_unaligned(), from.add(1).read_unaligned());
                let (y, z) = (from_end.sub(2).read_unaligned(), from_end.sub(1).read_unaligned());
                to.write_unaligned(a);
                to.add(1).write_unaligned(b);
                to_end.sub(2).write_unaligned(y);
                to_end.sub(1).write_unaligned(z);
            }
            16..=32 => ends::<Wide>(src, dst, n),
            8..=15 => ends::<u64>(src, dst, n),
            4..=7 => ends::<u32>(src, dst, n),
            2..=3 => ends::<u16>(src, dst, n),
            1 => *dst = *src,
            MUCH.. => copy_much(src, dst, n),
            _ => std::ptr::copy_nonoverlapping(src, dst, n),
        }
    }
}

/// Copies `n` bytes, many.
///
/// # Safety
/// As for [`copy`].
#[inline(never)]
unsafe fn copy_much(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: by the contract.
    unsafe { if processor::stores_strings_well() { copy_string(src, dst, n) } else { copy_lines(src, dst, n) } }
}

/// Copies `n` bytes by the processor's own instruction for that.
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
unsafe fn copy_string(src: *const u8, dst: *mut u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads and writes what the contract allows; the direction flag is clear between functions (System V ABI).
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") n => _, inout("rsi") src => _, inout("rdi") dst => _, options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: by the contract.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, n);
    }
}

/// Copies `n` bytes line by line, with those asked for that come next but seven.
///
/// # Safety
/// As for [`copy`].
unsafe fn copy_lines(src: *const u8, dst: *mut u8, n: usize) {
    const LINE: usize = 64;
    let whole = n - n % LINE;
    for at in (0..whole).step_by(LINE) {
        // SAFETY: a line below `n`; what is asked for ahead is not read.
        unsafe {
            let (from, to) = (src.add(at).cast::<Wide>(), dst.add(at).cast::<Wide>());
            mem::fetch(src.wrapping_add(at + 8 * LINE));
            let line = [0, 1, 2, 3].map(|i| from.add(i).read_unaligned());
            for (i, part) in line.into_iter().enumerate() {
                to.add(i).write_unaligned(part);
            }
        }
    }
    // SAFETY: what is left.
    unsafe { std::ptr::copy_nonoverlapping(src.add(whole), dst.add(whole), n - whole) };
}

/// Copies `n` bytes with stores that go to memory and leave the lines in no cache. All of them are visible before any store that follows.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline(never)]
pub unsafe fn copy_past_caches(src: *const u8, dst: *mut u8, n: usize) {
    use core::arch::x86_64::{_mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    let head = dst.align_offset(LINE).min(n);
    let lines = (n - head) / LINE * LINE;
    // SAFETY: three parts below `n`, one behind the other; the stores of the second are aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, head);
        for at in (head..head + lines).step_by(LINE) {
            let (from, to) = (src.add(at).cast::<Wide>(), dst.add(at).cast::<Wide>());
            let line = [0, 1, 2, 3].map(|i| from.add(i).read_unaligned());
            for (i, part) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), part);
            }
        }
        _mm_sfence(); // these stores are ordered by nothing else, not by the Release of the cursor either
        let rest = head + lines;
        std::ptr::copy_nonoverlapping(src.add(rest), dst.add(rest), n - rest);
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub use copy as copy_past_caches;

/// Copies the first and the last bytes of `n`, a `T` each.
///
/// # Safety
/// As for [`copy`]; `n` lies between the size of `T` and twice that.
#[inline(always)]
unsafe fn ends<T: Copy>(src: *const u8, dst: *mut u8, n: usize) {
    let last = n - size_of::<T>();
    // SAFETY: by the contract.
    unsafe {
        let (a, z) = (src.cast::<T>().read_unaligned(), src.add(last).cast::<T>().read_unaligned());
        dst.cast::<T>().write_unaligned(a);
        dst.add(last).cast::<T>().write_unaligned(z);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_exactly_what_is_asked() {
        const MOST: usize = 9000;
        let from: Vec<u8> = (0..MOST + 2).map(|i| (i * 7 + i / 251) as u8).collect();
        for copy in [copy, copy_past_caches, copy_string, copy_lines] {
            for n in (0..150).chain(4090..4230).chain([8191, 8192, MOST]) {
                let mut to = vec![0xff_u8; MOST + 2];
                // SAFETY: both are longer than `n + 1`.
                unsafe { copy(from.as_ptr().add(1), to.as_mut_ptr().add(1), n) };
                assert_eq!(to[1..=n], from[1..=n], "{n}");
                assert!(to[0] == 0xff && to[n + 1..].iter().all(|b| *b == 0xff), "{n}");
            }
        }
    }
}
