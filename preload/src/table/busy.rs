//! How long ago a connection was used, for TCP_INFO: of what goes through memory the kernel knows nothing, and a program that closes
//! what has been idle for long would close a busy connection.
//!
//! Nothing is noted where bytes move. Each question remembers what had been moved by then, so the last use is known as well as
//! questions are frequent, and never taken for earlier than it was. Asked by `interpose`.

use super::options;
use crate::family::sock::Sock;
use crate::family::{SOCK_CAP, index_of};
use crate::sys::clock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// What one direction had moved when it was asked for, and when that was new.
struct Mark {
    moved: AtomicU64,
    since_ms: AtomicU64,
}

struct Marks {
    generation: AtomicU32,
    of: [Mark; 2],
}

#[allow(clippy::declare_interior_mutable_const, reason = "it fills the table and is nothing else")]
const NONE: Marks = Marks { generation: AtomicU32::new(0), of: [const { Mark { moved: AtomicU64::new(0), since_ms: AtomicU64::new(0) } }; 2] };

/// Of this process's questions.
static MARKS: [Marks; SOCK_CAP] = [NONE; SOCK_CAP];

/// Milliseconds at most since memory took a byte to the peer, and since it brought one. None: it never did.
pub fn idle_ms(s: &Sock) -> [Option<u32>; 2] {
    let marks = &MARKS[index_of(s) as usize];
    let now = clock::now_ns() / 1_000_000;
    let generation = s.generation.load(Relaxed);
    let is_first = marks.generation.swap(generation, Relaxed) != generation;
    let (sent, received) = options::in_memory_so_far(s);
    [(sent, &marks.of[0]), (received, &marks.of[1])].map(|(moved, mark)| {
        let is_new = mark.moved.swap(moved, Relaxed) != moved || is_first;
        if is_new {
            mark.since_ms.store(now, Relaxed);
        }
        let ms = now.saturating_sub(mark.since_ms.load(Relaxed));
        (moved != 0).then_some(ms.min(u64::from(u32::MAX)) as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family;

    #[test]
    fn what_has_moved_since_the_last_question_is_new() {
        let s = family::take_sock().unwrap();
        s.reset();
        assert_eq!(idle_ms(s), [None, None]);
        s.tx.cursor.store(5, Relaxed);
        assert!(idle_ms(s)[0].is_some_and(|ms| ms < 1000) && idle_ms(s)[1].is_none());
        MARKS[index_of(s) as usize].of[0].since_ms.fetch_sub(7000, Relaxed);
        assert!(idle_ms(s)[0].is_some_and(|ms| (7000..60_000).contains(&ms)));
        s.tx.cursor.store(6, Relaxed);
        assert!(idle_ms(s)[0].is_some_and(|ms| ms < 1000));
        MARKS[index_of(s) as usize].of[0].since_ms.fetch_sub(7000, Relaxed);
        s.reset();
        s.tx.cursor.store(6, Relaxed);
        assert!(idle_ms(s)[0].is_some_and(|ms| ms < 1000), "another connection");
    }
}
