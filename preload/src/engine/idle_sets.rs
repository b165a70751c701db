//! A reader in blocking mode that is a member of sets in which nobody was seen to wait. Such a set may tell it when to read, by a wait that no
//! hook sees, and then each arrival has to make a doorbell (docs/readiness.md). Mostly it tells nobody anything: Asio puts every socket into one,
//! also where the program does nothing but read and write. Who is told reads then; so a read that finds nothing right behind a send of its own
//! was told by nobody. After some of them the sets count for nothing, until a wait is seen (`Sock::disregard_sets`). Called by [`super::rx`].

use super::{follow, kernel};
use crate::family::lock::Marker;
use crate::family::sock::{Sock, flag};
use std::sync::atomic::Ordering::*;

/// So many reads have found nothing right behind a send.
const BEHIND_SENDS: u32 = 16;
/// So many more have found nothing otherwise than have found something: who reads what it was told of may wait for the rest of a message.
const OTHERS: u32 = 256;

/// Whether that is so of this one, and nothing says that its waiter is another.
#[inline]
pub fn are_beside(s: &Sock) -> bool {
    const OTHER: u32 = flag::NONBLOCK | flag::RAW | flag::SHARED | flag::LINKED;
    s.has(flag::UNSEEN) && !s.has(OTHER) && s.are_sets_idle()
}

/// At the beginning of a read that waits for what it wants.
#[cold]
pub fn look(s: &Sock) {
    let marker = Marker::new();
    let (Some(dir), Some(_held)) = (s.rx.dir().filter(|_| s.rx_in_memory()), s.rx.lock.try_take(&marker)) else { return };
    let sent = s.tx.cursor.load(Relaxed) + s.tx.tcp.load(Relaxed);
    let has_sent = s.rx.mark.swap(sent, Relaxed) != sent;
    let known = s.rx.full.load(Relaxed);
    let (mut behind, mut others) = (known >> 16, known & 0xffff);
    match follow::pending(s, dir) {
        true => others = others.saturating_sub(1),
        false if has_sent => behind = (behind + 1).min(BEHIND_SENDS),
        false => others = (others + 1).min(OTHERS),
    }
    s.rx.full.store(behind << 16 | others, Relaxed);
    if (behind >= BEHIND_SENDS || others >= OTHERS) && s.disregard_sets() {
        kernel::reads_blocking(s, dir);
    }
}
