//! seccomp filters: what a program of classic BPF says of a system call, asked before the process is given to it.
//!
//! `table::confine` asks it about the calls that the library makes. Instructions and data are those of linux/filter.h and
//! linux/seccomp.h; what the kernel would refuse is refused here.

use super::Sysno;
use super::probe::is_there;

/// struct sock_filter.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

/// struct sock_fprog.
#[repr(C)]
struct Program {
    len: u16,
    filter: *const Instruction,
}

/// Most instructions of a filter (BPF_MAXINSNS).
const LONGEST: usize = 4096;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const ACTION: u32 = 0xffff_0000;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// The filter that a program gives to prctl or seccomp; None: no such thing, which the kernel says as well.
///
/// # Safety
/// `program` must be the program's argument: a struct sock_fprog, or no memory at all.
pub unsafe fn parse<'a>(program: *const libc::c_void) -> Option<&'a [Instruction]> {
    let program = program.cast::<Program>();
    if !is_there(program, 1) {
        return None;
    }
    // SAFETY: it is there.
    let (len, filter) = unsafe { ((*program).len as usize, (*program).filter) };
    if len == 0 || len > LONGEST || !is_there(filter, len) {
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { std::slice::from_raw_parts(filter, len) })
}

/// Whether the filter lets this call through.
pub fn allows(filter: &[Instruction], nr: Sysno, args: [usize; 6]) -> bool {
    matches!(run(filter, &data(nr as u32, args)).map(|r| r & ACTION), Some(ALLOW | LOG))
}

/// struct seccomp_data, in words. Where the call stands in memory is not known: a filter that asks for it gets 0.
fn data(nr: u32, args: [usize; 6]) -> [u32; 16] {
    let mut d = [0; 16];
    (d[0], d[1]) = (nr, ARCH);
    for (to, arg) in d[4..].chunks_exact_mut(2).zip(args) {
        // The low word stands first on both processors.
        (to[0], to[1]) = (arg as u32, (arg as u64 >> 32) as u32);
    }
    d
}

/// What the filter returns; None: it is none that the kernel takes.
fn run(filter: &[Instruction], data: &[u32; 16]) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0usize;
    loop {
        let i = filter.get(at)?;
        at += 1;
        let operand = if i.code & 0x08 != 0 { x } else { i.k };
        match i.code {
            0x20 => a = *data.get(i.k as usize / 4).filter(|_| i.k % 4 == 0)?, // LD W ABS
            0x80 => a = size_of_val(data) as u32,                              // LD W LEN
            0x81 => x = size_of_val(data) as u32,                              // LDX W LEN
            0x00 => a = i.k,                                                   // LD IMM
            0x01 => x = i.k,                                                   // LDX IMM
            0x60 => a = *memory.get(i.k as usize)?,                            // LD MEM
            0x61 => x = *memory.get(i.k as usize)?,                            // LDX MEM
            0x02 => *memory.get_mut(i.k as usize)? = a,                        // ST
            0x03 => *memory.get_mut(i.k as usize)? = x,                        // STX
            0x06 => return Some(i.k),                                          // RET K
            0x16 => return Some(a),                                            // RET A
            0x07 => x = a,                                                     // TAX
            0x87 => a = x,                                                     // TXA
            0x84 => a = a.wrapping_neg(),                                      // NEG
            0x05 => at = at.checked_add(i.k as usize)?,                        // JA
            0x15 | 0x1d => at += usize::from(if a == operand { i.yes } else { i.no }),
            0x25 | 0x2d => at += usize::from(if a > operand { i.yes } else { i.no }),
            0x35 | 0x3d => at += usize::from(if a >= operand { i.yes } else { i.no }),
            0x45 | 0x4d => at += usize::from(if a & operand != 0 { i.yes } else { i.no }),
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c => match a.checked_div(operand) {
                Some(quotient) => a = quotient,
                None => return Some(0),
            },
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.wrapping_shl(operand),
            0x74 | 0x7c => a = a.wrapping_shr(operand),
            0xa4 | 0xac => a ^= operand,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn i(code: u16, k: u32, yes: u8, no: u8) -> Instruction {
        Instruction { code, yes, no, k }
    }

    /// Numbers 0 and 1 are allowed; 16 with the second argument 0x541b.
    fn some() -> [Instruction; 9] {
        [
            i(0x20, 4, 0, 0),
            i(0x15, ARCH, 0, 6),
            i(0x20, 0, 0, 0),
            i(0x15, Sysno::read as u32, 3, 0),
            i(0x15, Sysno::ioctl as u32, 0, 3),
            i(0x20, 24, 0, 0),
            i(0x15, 0x541b, 0, 1),
            i(0x06, ALLOW, 0, 0),
            i(0x06, 0x8000_0000, 0, 0),
        ]
    }

    #[test]
    fn a_filter_says_what_it_says_to_the_kernel() {
        assert!(allows(&some(), Sysno::read, [0; 6]));
        assert!(!allows(&some(), Sysno::write, [0; 6]));
        assert!(allows(&some(), Sysno::ioctl, [3, 0x541b, 0, 0, 0, 0]));
        assert!(!allows(&some(), Sysno::ioctl, [3, 0x5411, 0, 0, 0, 0]));
        let loaded = [i(0x01, 5, 0, 0), i(0x00, 4, 0, 0), i(0x0c, 0, 0, 0), i(0x02, 3, 0, 0), i(0x61, 3, 0, 0), i(0x87, 0, 0, 0), i(0x16, 0, 0, 0)];
        assert_eq!(run(&loaded, &data(0, [0; 6])), Some(9));
        let high = [i(0x20, 20, 0, 0), i(0x16, 0, 0, 0)];
        assert_eq!(run(&high, &data(0, [7 << 32, 0, 0, 0, 0, 0])), Some(7));
    }

    #[test]
    fn what_the_kernel_refuses_allows_nothing() {
        for bad in [
            &[][..],
            &[i(0x20, 64, 0, 0)],
            &[i(0x20, 2, 0, 0)],
            &[i(0x05, u32::MAX, 0, 0)],
            &[i(0x15, 0, 200, 200)],
            &[i(0xffff, 0, 0, 0)],
            &[i(0x02, 16, 0, 0)],
        ] {
            assert!(!allows(bad, Sysno::read, [0; 6]));
        }
        // SAFETY: no memory at all.
        assert!(unsafe { parse(std::ptr::null()) }.is_none());
    }
}
