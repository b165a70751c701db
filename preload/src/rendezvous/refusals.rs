//! Servers that had no channel for us, by the name that they announce: one beyond its budget of descriptors (`transport::budget`) ends each
//! that comes, and would end those of the next connections. [`super::client`] asks before it makes one.

use crate::sys::clock;
use crate::sys::rests::Rests;

/// How long it is not asked again.
const REST_NS: u64 = 1_000_000_000;

static REFUSED: Rests<16> = Rests::none();

/// It has refused.
pub fn note(name: u64) {
    let now = clock::now_ns();
    REFUSED.begin(name, now, now + REST_NS);
}

/// Whether it has of late.
pub fn has(name: u64) -> bool {
    REFUSED.has(name, clock::now_ns())
}
