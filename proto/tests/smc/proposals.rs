//! Proposals that offer SMC-D beside SMC-R or instead of it: read for what concerns SMC-R.

use smcr_proto::smc::clc::Message;
use smcr_proto::smc::clc::proposal::{Proposal, Release};
use smcr_proto::smc::error::WireError;

use crate::parts;

/// The types of byte 7.
const R: u8 = 0;
const D: u8 = 1;
const NEITHER: u8 = 2;
const BOTH: u8 = 3;

/// A Proposal of both versions, with these types and an SMC-Dv2 extension of so many entries.
fn read(v1: u8, v2: u8, entries: Option<usize>) -> Result<Proposal, WireError> {
    let plain = parts::proposal(true, Some(Release::V20));
    let mut bytes = Message::Proposal(plain).emit().to_vec();
    let v2_extension = 52 + bytes[51] as usize;
    if let Some(entries) = entries {
        let end = bytes.len() - 4;
        bytes.splice(end..end, vec![7; 48 + 10 * entries]);
        bytes[v2_extension + 1] = entries as u8;
    }
    let len = bytes.len() as u16;
    bytes[5..7].copy_from_slice(&len.to_be_bytes());
    bytes[7] = 0x20 | v2 << 2 | v1;
    match Message::parse(&bytes)? {
        Message::Proposal(proposal) => Ok(proposal),
        other => panic!("{other:?}"),
    }
}

#[test]
fn smc_d_is_measured_and_skipped() {
    let full = parts::proposal(true, Some(Release::V20));
    let (v1, v2) = (full.v1, full.v2);
    let offers = |read: Result<Proposal, WireError>| read.map(|p| (p.v1, p.v2));
    assert_eq!(offers(read(R, R, None)), Ok((v1, v2)));
    assert_eq!(offers(read(BOTH, BOTH, Some(2))), Ok((v1, v2)));
    assert_eq!(offers(read(D, R, None)), Ok((None, v2)), "the subnets are there for SMC-D");
    assert_eq!(offers(read(R, D, Some(0))), Ok((v1, None)));
    assert_eq!(offers(read(D, D, Some(8))), Ok((None, None)));
}

#[test]
fn the_length_has_to_fit_what_is_offered() {
    assert_eq!(read(R, BOTH, None), Err(WireError::Length));
    assert_eq!(read(R, R, Some(0)), Err(WireError::Length));
    assert_eq!(read(NEITHER, R, None), Err(WireError::Length), "nobody asked for the subnets");
    assert_eq!(read(R, NEITHER, None), Err(WireError::Length));
    assert_eq!(read(R, BOTH, Some(9)), Err(WireError::Count));
}
