//! Reading and writing big-endian fields at fixed offsets, with every access checked.
//!
//! The parsers of this folder read through [`Fields`], so that no offset or length of a peer can
//! reach beyond the message; the emitters fill arrays of known size through `put_*`.

use super::error::WireError;

/// A message that is being read; offsets are bytes from its start.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn bytes(self, at: usize, len: usize) -> Result<&'a [u8], WireError> {
        let end = at.checked_add(len).ok_or(WireError::Truncated)?;
        self.0.get(at..end).ok_or(WireError::Truncated)
    }

    pub fn array<const N: usize>(self, at: usize) -> Result<[u8; N], WireError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(at, N)?);
        Ok(out)
    }

    pub fn u8(self, at: usize) -> Result<u8, WireError> {
        self.0.get(at).copied().ok_or(WireError::Truncated)
    }

    pub fn u16(self, at: usize) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array(at)?))
    }

    pub fn u24(self, at: usize) -> Result<u32, WireError> {
        let [a, b, c] = self.array(at)?;
        Ok(u32::from_be_bytes([0, a, b, c]))
    }

    pub fn u32(self, at: usize) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array(at)?))
    }

    pub fn u64(self, at: usize) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array(at)?))
    }
}

/// Copies `bytes` to `at`; the caller's array is known to be long enough.
pub(super) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

pub(super) fn put_u16(out: &mut [u8], at: usize, value: u16) {
    put(out, at, &value.to_be_bytes());
}

/// The low 24 bits of `value`.
pub(super) fn put_u24(out: &mut [u8], at: usize, value: u32) {
    put(out, at, &value.to_be_bytes()[1..]);
}

pub(super) fn put_u32(out: &mut [u8], at: usize, value: u32) {
    put(out, at, &value.to_be_bytes());
}

pub(super) fn put_u64(out: &mut [u8], at: usize, value: u64) {
    put(out, at, &value.to_be_bytes());
}
