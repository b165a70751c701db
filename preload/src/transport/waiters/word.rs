//! The words by which peers know a waiter: in the doorbell word of a direction, and in messages of the channel.

use super::{SLOTS, Waiter};

/// Mark of a doorbell word that names a waiter.
const WORD: u32 = 0x8000_0000;
/// And of one that names a waiter to which arrivals are posted ([`crate::transport::posts`]): it does not look at the connection otherwise.
const POSTED: u32 = 0x80;
const _: () = assert!(SLOTS as u32 <= POSTED);
/// Generations of a slot that can be told apart.
pub(super) const GENERATIONS: u32 = WORD >> 8;

impl Waiter {
    /// The waiter that a peer names; None if there is no such slot.
    pub fn named(slot: u32, generation: u32) -> Option<Waiter> {
        let known = (slot as usize) < SLOTS && generation < GENERATIONS;
        known.then_some(Waiter(generation << 8 | slot))
    }

    /// The doorbell word that tells a peer to look at this waiter.
    #[inline]
    pub fn word(self) -> u32 {
        WORD | self.0
    }

    /// The doorbell word that tells a peer to post what arrives to this waiter.
    pub fn posted_word(self) -> u32 {
        self.word() | POSTED
    }

    /// The waiter that a doorbell word names.
    #[inline]
    pub fn of_word(word: u32) -> Option<Waiter> {
        (word & WORD != 0).then_some(Waiter(word & !(WORD | POSTED)))
    }

    /// As [`Waiter::of_word`], if the waiter looks at the connection by itself while it is awake.
    #[inline]
    pub fn of_plain_word(word: u32) -> Option<Waiter> {
        (word & (WORD | POSTED) == WORD).then_some(Waiter(word & !WORD))
    }

    /// The waiter that a doorbell word names if what arrives is posted to it.
    #[inline]
    pub fn of_posted_word(word: u32) -> Option<Waiter> {
        Waiter::of_word(word).filter(|_| word & POSTED != 0)
    }

    /// Slot number, below [`SLOTS`].
    #[inline]
    pub fn slot(self) -> usize {
        self.0 as usize % SLOTS
    }

    /// Generation of the slot.
    #[inline]
    pub fn generation(self) -> u32 {
        self.0 >> 8
    }
}
