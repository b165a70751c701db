//! The LLC messages about registered memory, Confirm and Delete Rkey, and Test Link.
//!
//! Offsets from the start of the message. Called by the parent module.

use super::{Family, RESPONSE};
use crate::smc::error::WireError;
use crate::smc::fields::{Fields, put, put_u32, put_u64};
use crate::smc::id::Rkey;
use crate::smc::list::List;

/// Confirm and Delete Rkey: refused.
const NEGATIVE: u8 = 0x20;
/// Confirm Rkey: try again.
const RETRY: u8 = 0x10;

mod confirm {
    pub const COUNT: usize = 4;
    pub const RKEY: usize = 5;
    pub const ADDRESS: usize = 9;
    pub const OTHERS: usize = 17;
    pub const OTHER_LEN: usize = 13;
}

/// Confirm Rkey: the key of a memory on this link, and on the others. An answer repeats it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConfirmRkey {
    /// Answer to a request.
    pub response: bool,
    /// Answer: refused.
    pub negative: bool,
    /// Answer: refused for now.
    pub retry: bool,
    /// The key on this link.
    pub rkey: Rkey,
    /// The address on this link.
    pub address: u64,
    /// Key and address on up to two other links.
    pub others: List<RkeyOnLink, 2>,
}

/// A memory's key on a link other than the one the message came by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RkeyOnLink {
    /// Number of the link.
    pub link: u8,
    /// The key.
    pub rkey: Rkey,
    /// The address.
    pub address: u64,
}

impl ConfirmRkey {
    pub(super) fn parse(f: Fields, flags: u8) -> Result<Self, WireError> {
        let count = f.u8(confirm::COUNT)? as usize;
        let mut others = List::new();
        for i in 0..count {
            let at = confirm::OTHERS + confirm::OTHER_LEN * i;
            let (link, rkey) = (f.u8(at)?, Rkey(f.u32(at + 1)?));
            if !others.push(RkeyOnLink { link, rkey, address: f.u64(at + 5)? }) {
                return Err(WireError::Count);
            }
        }
        Ok(ConfirmRkey {
            response: flags & RESPONSE != 0,
            negative: flags & NEGATIVE != 0,
            retry: flags & RETRY != 0,
            rkey: Rkey(f.u32(confirm::RKEY)?),
            address: f.u64(confirm::ADDRESS)?,
            others,
        })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> u8 {
        out[confirm::COUNT] = self.others.len() as u8;
        put_u32(out, confirm::RKEY, self.rkey.0);
        put_u64(out, confirm::ADDRESS, self.address);
        for (i, other) in self.others.iter().enumerate() {
            let at = confirm::OTHERS + confirm::OTHER_LEN * i;
            out[at] = other.link;
            put_u32(out, at + 1, other.rkey.0);
            put_u64(out, at + 5, other.address);
        }
        flags(self.response, self.negative) | if self.retry { RETRY } else { 0 }
    }
}

mod delete {
    pub const COUNT: usize = 4;
    /// Answer: version 1 a mask of the unknown keys (first key in bit 7), version 2 their number.
    pub const ERRORS: usize = 5;
    pub const KEYS: usize = 8;
}

/// Most keys that are taken from one Delete Rkey. Linux sends one; version 2 allows 255.
pub const MAX_DELETE_KEYS: usize = 8;

/// Delete Rkey: the sender's memories that may not be written to any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeleteRkey {
    /// Answer to a request.
    pub response: bool,
    /// Answer: refused, or some keys were unknown.
    pub negative: bool,
    /// Answer: which keys were unknown (version 1), or how many (version 2).
    pub errors: u8,
    /// The keys; Linux zeroes them in an answer of version 2.
    pub keys: List<Rkey, MAX_DELETE_KEYS>,
    /// Version 2: keys that the message has beyond these.
    pub more: u8,
}

impl DeleteRkey {
    pub(super) fn parse(f: Fields, family: Family, bits: u8) -> Result<Self, WireError> {
        let count = f.u8(delete::COUNT)? as usize;
        let mut keys = List::new();
        for i in 0..count.min(MAX_DELETE_KEYS) {
            keys.push(Rkey(f.u32(delete::KEYS + 4 * i)?));
        }
        let more = count - keys.len();
        // An answer has 44 bytes and no keys, whatever its count says.
        let response = bits & RESPONSE != 0;
        if more > 0 && (family == Family::V1 || !response && f.0.len() < delete::KEYS + 4 * count) {
            return Err(WireError::Count);
        }
        let (negative, errors) = (bits & NEGATIVE != 0, f.u8(delete::ERRORS)?);
        Ok(DeleteRkey { response, negative, errors, keys, more: more as u8 })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> u8 {
        out[delete::COUNT] = (self.keys.len() as u8).saturating_add(self.more);
        out[delete::ERRORS] = self.errors;
        for (i, key) in self.keys.iter().enumerate() {
            put_u32(out, delete::KEYS + 4 * i, key.0);
        }
        flags(self.response, self.negative)
    }
}

mod test {
    pub const USER_DATA: usize = 4;
}

/// Test Link: any answer will do; it repeats the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestLink {
    /// Answer to a request.
    pub response: bool,
    /// Chosen by the requester; Linux sends zeros.
    pub user_data: [u8; 16],
}

impl TestLink {
    pub(super) fn parse(f: Fields, response: bool) -> Result<Self, WireError> {
        Ok(TestLink { response, user_data: f.array(test::USER_DATA)? })
    }

    pub(super) fn emit(&self, out: &mut [u8]) -> u8 {
        put(out, test::USER_DATA, &self.user_data);
        flags(self.response, false)
    }
}

fn flags(response: bool, negative: bool) -> u8 {
    let response = if response { RESPONSE } else { 0 };
    response | if negative { NEGATIVE } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::Message;
    use super::*;

    #[test]
    fn counts_beyond_the_message_are_refused() {
        let mut bytes = [0; 44];
        bytes[..5].copy_from_slice(&[0x06, 44, 0, 0, 3]);
        assert!(Message::parse(&bytes).is_err(), "three other links");
        bytes[..5].copy_from_slice(&[0x09, 44, 0, 0, 9]);
        assert_eq!(Message::parse(&bytes), Err(WireError::Count));
        bytes[0] = 0x29;
        assert!(Message::parse(&bytes).is_ok(), "nine keys fit 44 bytes in version 2");
        bytes[4] = 10;
        assert_eq!(Message::parse(&bytes), Err(WireError::Count));
    }
}
