//! Owns: what the survivor of a mill (`mill.rs`, which asks here) must have seen of its dead peer, and whether lines move.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, ensure};

use crate::mill::{Lines, Side};
use crate::page::Record;

/// Connections that were reset because of a proof that stood unread, and would not have been natively.
static PROOFS_UNREAD: AtomicU64 = AtomicU64::new(0);

/// How many there were in this run.
pub fn proofs_unread() -> u64 {
    PROOFS_UNREAD.load(Relaxed)
}

/// More than the largest segment on loopback.
const SEGMENT: u64 = 70_000;
pub const END: u32 = 1;
const ERROR: u32 = 1000;

/// Nothing hangs: every connection that is open still moves, each of its directions that bytes or an end are on their way in too,
/// and what came is right.
pub fn goes_on(before: &Lines, now: &Lines) -> bool {
    let moves = |(before, now): (&[Side; 2], &[Side; 2])| {
        let grew = |side: usize| now[side].got > before[side].got;
        let waits = |side: usize| now[side].phase == 1 && (now[1 - side].offered > now[side].got || now[1 - side].phase == 2);
        let is_open = now.iter().any(|side| side.phase == 1);
        !is_open || (grew(0) || grew(1)) && (0..2).all(|side| grew(side) || !waits(side))
    };
    let right = now.iter().flatten().all(|side| side.wrong == 0);
    let is_open = now.iter().flatten().any(|side| side.phase == 1);
    right && is_open && before.iter().zip(now).all(moves)
}

/// Whether a line has moved, as far as its rhythm lets it (see `mill.c`).
pub fn has_moved(line: usize, now: &[Side; 2], before: &[Side; 2]) -> bool {
    const HALF: usize = 6;
    let grew = now.iter().zip(before).any(|(n, b)| n.got > b.got);
    grew || line % 8 == HALF && now[1].phase == 2
}

/// Whether what a survivor saw of its dead peer is what TCP shows. `page`: what the dead end's page shows. A proof
/// may have stood unread in its stream, of which the kernel makes a reset (docs/faults.md).
pub fn judge(survivor: &Side, dead: &Side, before: &Side, page: Option<Record>) -> Result<()> {
    let reset = ERROR + libc::ECONNRESET as u32;
    let awaits_proof = page.is_some_and(|r| r.awaits_proof());
    ensure!(survivor.wrong == 0 && dead.wrong == 0, "other bytes than were sent");
    if survivor.phase == 0 || survivor.in_end == 0 {
        return Ok(()); // never met, or the connection was refused
    }
    ensure!(survivor.got <= dead.offered, "more bytes than were sent");
    let ends = [END, reset, ERROR + libc::EPIPE as u32, ERROR + libc::ENOTCONN as u32];
    ensure!([END, reset].contains(&survivor.in_end), "recv ended with {}", survivor.in_end);
    ensure!(ends.contains(&survivor.out_end), "send ended with {}", survivor.out_end);
    // The error of a reset is told once: to the reader, or to the writer beside it.
    let was_reset = survivor.in_end == reset || survivor.out_end == reset;
    if !was_reset {
        ensure!(survivor.got >= dead.sent, "{} bytes are lost before an orderly end", dead.sent - survivor.got);
    }
    if !awaits_proof && dead.phase != 0 && survivor.offered <= dead.got {
        ensure!(!was_reset, "a reset although the dead end had read everything");
    }
    if awaits_proof && was_reset && survivor.offered <= dead.got {
        PROOFS_UNREAD.fetch_add(1, Relaxed);
    }
    // One that has shut down itself, or was about to (0 is neither), was read to its end, and the survivor may have closed before the death.
    // Less than a segment may have waited for an acknowledgement. Through TCP more may have been on its way: who
    // dies before it comes has left nothing unread, and the survivor gets an end, and EPIPE when it has come.
    let through_tcp = page.is_none_or(|r| r.rx_switches.is_multiple_of(2));
    let came_late = through_tcp && survivor.out_end == ERROR + libc::EPIPE as u32;
    if dead.phase != 0 && dead.out_end == 0 && before.sent > dead.asked.max(dead.got) + SEGMENT {
        ensure!(was_reset || came_late, "no reset although the dead end left bytes unread");
    }
    Ok(())
}
