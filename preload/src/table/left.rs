//! Calls that a thread leaves otherwise than by returning: by a jump out of a signal handler, or because it ends in one.
//!
//! They may have held a direction's lock, have shown bytes or room and not told who waits for that, have taken bytes and not counted
//! them; the kernel may have sent or received for them; a socket that is closed may have waited for their end. Called by the hooks of longjmp and its relatives, and by the unwinder.

use crate::engine::{bell, count, counted, inside, linked, within};
use crate::family::lock::{self, Lock};
use crate::family::{self, sock::Sock};
use crate::rendezvous::stepping;

/// The calling thread goes on at `target` of its stack, and what lies below is over.
pub fn below(target: usize) {
    within::leave_below(target);
    lock::leave(target, make_up);
    counted::leave_below(target);
    inside::leave_below(target);
    stepping::leave_below(target);
    super::waited::leave_below(target);
    linked::listener_leaves();
}

/// The calling thread becomes another program, in a handler above calls of its own perhaps: those do not go on, and what is theirs is done
/// by the exec. (Should that fail, they go on without their locks: a program that execs in a handler ends then, or waits for nobody.)
pub fn for_exec() {
    lock::leave(usize::MAX, make_up);
}

/// The calling thread ends, and unwinds its stack by force: nothing stops that.
pub fn all() {
    below(usize::MAX);
}

/// The lock is still held, so that nobody unmaps the region.
fn make_up(lock: &Lock) {
    let Some(s) = family::sock_of(std::ptr::from_ref(lock) as usize) else { return };
    let Some(fd) = descriptor(s).filter(|_| !s.is_linked()) else { return };
    if std::ptr::eq(lock, &s.rx.lock) {
        count::make_up(s, fd);
    }
    bell::tell_again(s, fd);
}

fn descriptor(s: &Sock) -> Option<i32> {
    let open = super::connections().find(|(_, other)| std::ptr::eq(*other, s)).map(|(fd, _)| fd);
    open.or_else(|| inside::number(s))
}
