//! The links of the process's link groups in the family page, for `smcrctl linkgroup`. Written by `link` under its
//! lock, so there is one writer of each record.

use super::{PROC_CAP, at, base, process};
use smcr_proto::page::link::{EACH, LEN, Record, WORDS};
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

/// Room for the records of all processes.
pub const CAP: usize = PROC_CAP * EACH;

/// Shows what link number `place` of this process is; None: there is none. Places from [`EACH`] on are
/// not shown.
pub fn show(place: usize, record: Option<&Record>) {
    let Some(base) = base() else { return };
    if place >= EACH {
        return;
    }
    let number = process::index() as usize % PROC_CAP * EACH + place;
    let words: &[AtomicU64; WORDS] = at(base, super::LINK_OFF + number * LEN);
    let generation = words[0].load(Relaxed) | 1;
    words[0].store(generation, Relaxed);
    // Release: a reader that has seen a new word also sees the odd number (smcrctl reads a copy).
    fence(Release);
    let new = record.map_or([0; WORDS], Record::words);
    for (to, word) in words.iter().zip(new).skip(1) {
        to.store(word, Relaxed);
    }
    words[0].store(generation + 1, Release); // pairs with the reader's first look
}
