//! A set whose lock was left in the middle of a change: a thread jumped out of a handler, or ended in one, while it held it.
//!
//! Whoever takes the lock next finds it out ([`Inner::held`]) and makes everything that follows from the members anew: what
//! is found by number and by word, the hot list and the counts. What the kernel has registered of them is not known; the next look
//! writes it again. Called by [`super::set`].

use super::members::Inner;
use crate::table;

/// For [`Inner::changes`]: all members are to be looked at.
pub const UNKNOWN: u64 = u64::MAX;
/// For [`super::member::Member::kernel`]: no registration is like that.
const NONE: u32 = u32::MAX;

/// Makes it whole.
#[cold]
#[inline(never)]
pub fn mend(inner: &mut Inner) {
    inner.by_fd.clear();
    inner.by_data.clear();
    inner.logs.clear();
    (inner.hot_len, inner.turn, inner.ours) = (0, 0, 0);
    for m in 0..inner.used() {
        let mb = inner.member_mut(m);
        (mb.hot, mb.log) = (false, 0);
        let (fd, data, is_named) = (mb.fd, mb.data, !mb.orphan);
        if fd < 0 {
            continue;
        }
        // One that is on TCP goes back to the program's own registration.
        if is_named && table::sock(fd).is_some() {
            (mb.ours, mb.fresh, mb.kernel) = (true, true, NONE);
        }
        let is_ours = mb.ours;
        if is_named {
            inner.by_fd.add(fd as u64, m);
        }
        inner.by_data.add(data, m);
        if is_ours {
            inner.ours += 1;
            inner.heat(m);
        }
    }
    inner.changes = UNKNOWN;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_half_done_is_whole_again() {
        // SAFETY: all zero is an empty set.
        let mut inner: Inner = unsafe { std::mem::zeroed() };
        for fd in [100, 101, 102] {
            let m = inner.add(fd, 1, fd as u64 * 7, 0).unwrap();
            inner.member_mut(m).ours = true;
        }
        inner.ours = 3;
        inner.drop_member(1);
        // As a jump leaves them: said to be hot and not in the list, in no index, counted wrongly.
        inner.member_mut(0).hot = true;
        inner.by_fd.remove(102, 2);
        inner.ours = 9;
        mend(&mut inner);
        assert_eq!((inner.hot_len, inner.ours, inner.changes), (2, 2, UNKNOWN));
        assert_eq!((inner.hot(0), inner.hot(1)), (0, 2));
        assert_eq!((inner.by_fd.one(100), inner.by_fd.one(101), inner.by_fd.one(102)), (Some(0), None, Some(2)));
        assert_eq!(inner.by_data.one(714), Some(2));
    }
}
