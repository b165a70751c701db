//! Connections that file actions of posix_spawn give to a program under other numbers: where that is to look for what its peer
//! can't send again (`rendezvous::rest`).
//!
//! The actions are libc's, and what stands in them nobody else reads. So what was added is noted by their address, until they are made anew or
//! destroyed. Called by the hooks of posix_spawn_file_actions_*, and by [`super::forks`].

use super::{life, sock};
use crate::family::sock::Sock;
use crate::rendezvous::rest;
use smcr_proto::reason::Reason;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::*};

/// One duplicate. All zero is free.
struct Note {
    actions: AtomicUsize,
    /// Number here and there.
    fds: [AtomicI32; 2],
    /// Of the record then.
    generation: AtomicU32,
}

/// More at once are not noted: what lies unread there and can't be sent again is lost, and seen to be.
static NOTES: [Note; 128] =
    [const { Note { actions: AtomicUsize::new(0), fds: [AtomicI32::new(-1), AtomicI32::new(-1)], generation: AtomicU32::new(0) } }; 128];

/// The actions duplicate it: TCP from now on.
pub fn give(actions: usize, s: &'static Sock, fd: i32, new: i32) {
    if !life::hand_over(s, fd, Reason::Exec) && !note(actions, s, fd, new) && rest::is_there(s) {
        rest::lose(s, fd);
    }
}

/// False: there is no place.
fn note(actions: usize, s: &Sock, fd: i32, new: i32) -> bool {
    let claimed = NOTES.iter().find(|n| n.actions.compare_exchange(0, actions, AcqRel, Relaxed).is_ok());
    if let Some(n) = claimed {
        n.fds[0].store(fd, Relaxed);
        n.fds[1].store(new, Relaxed);
        n.generation.store(s.generation.load(Relaxed), Release); // pairs with the Acquire in `given`
    }
    claimed.is_some()
}

/// They are made anew, or no more.
pub fn forget(actions: usize) {
    for n in NOTES.iter().filter(|n| n.actions.load(Relaxed) == actions) {
        n.generation.store(0, Relaxed);
        n.actions.store(0, Release); // pairs with the AcqRel in `note`
    }
}

/// What they duplicate: the connection, its number here, and that in the program.
pub fn given(actions: usize) -> impl Iterator<Item = (&'static Sock, i32, i32)> {
    let ours = NOTES.iter().filter(move |n| actions != 0 && n.actions.load(Relaxed) == actions);
    ours.filter_map(|n| {
        let generation = n.generation.load(Acquire); // pairs with the Release in `note`
        let [fd, new] = n.fds.each_ref().map(|fd| fd.load(Relaxed));
        let s = sock(fd).filter(|s| s.generation.load(Relaxed) == generation)?;
        Some((s, fd, new))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_of_other_actions_or_another_record_is_not_given() {
        // SAFETY: all zero is a fresh record.
        let s: Sock = unsafe { std::mem::zeroed() };
        let noted = |actions| NOTES.iter().filter(|n| n.actions.load(Relaxed) == actions).count();
        assert!(note(4096, &s, 5, 7) && note(4096, &s, 5, 8) && note(8192, &s, 5, 9));
        assert_eq!((noted(4096), noted(8192)), (2, 1));
        assert_eq!(given(4096).count(), 0, "no such descriptor is tracked");
        forget(4096);
        assert_eq!((noted(4096), noted(8192)), (0, 1));
        forget(8192);
    }
}
