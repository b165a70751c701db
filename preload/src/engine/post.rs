//! Arrivals for a consumer that does not look at each of its connections: the producer posts the connection in its log
//! (`transport::posts`), once per arming, and wakes the waiter if that sleeps.
//!
//! [`ring`] is called by [`super::bell`] for the word of a posted waiter, [`arm`] by `ready::posted` for a member that turns cold.

use super::bell::{self, Kind, RUNG, Rang};
use super::kernel;
use crate::family::sock::Sock;
use crate::fault::{self, Step as Fault};
use crate::sys::thread::full_fence;
use crate::transport::peers;
use crate::transport::posts;
use crate::transport::region::Dir;
use crate::transport::waiters::Waiter;
use std::sync::atomic::Ordering::*;

/// After the producer has published its cursor, and found the word of a posted waiter. The error: what stands there now.
pub fn ring(s: &Sock, dir: &Dir, sock: i32, w: Waiter) -> Result<(), u32> {
    // Of two that publish one posts. Acquire: the token is the one of this arming.
    dir.bell.compare_exchange(w.posted_word(), RUNG, AcqRel, Relaxed)?;
    fault::pass(Fault::Posting);
    post(s, dir, sock, w);
    Ok(())
}

/// A call was left that may have come that far: it is posted once more, and its consumer looks once in vain at worst.
pub fn again(s: &Sock, dir: &Dir, sock: i32) {
    let word = (dir.post.load(Relaxed) >> 32) as u32;
    if dir.bell.load(Relaxed) == RUNG
        && let Some(w) = Waiter::of_posted_word(word)
    {
        post(s, dir, sock, w);
    }
}

fn post(s: &Sock, dir: &Dir, sock: i32, w: Waiter) {
    let slot = s.peer.load(Relaxed);
    let told = peers::get(slot).filter(|p| p.reads_our_log() && posts::append(dir.post.load(Relaxed) as u32));
    // Pairs with the fence in `Waiter::fall_asleep`: either we see who sleeps, or it sees the post in the look that follows.
    full_fence();
    // Or it has been written where nobody reads (`peers::know_old_page`).
    let told = told.filter(|p| p.reads_our_log());
    if told.is_none_or(|p| bell::ring_waiter(p, w, Some((slot, dir))) == Rang::Unknown) {
        bell::ring_tcp(s, dir, sock);
    }
}

/// Arms a connection whose sole waiter is the epoll set that has this waiter, and reads the peer's log from before this. Called with the
/// receiving lock held; the caller looks at the ring once more afterwards. False: it can't be woken like that.
pub fn arm(s: &Sock, dir: &Dir, sock: i32, w: Waiter, token: u32) -> bool {
    if !bell::is_sole(s, Kind::Set) || kernel::is_unknown(s) || !s.rx_in_memory() {
        return false;
    }
    bell::drain(s, dir, sock);
    let post = u64::from(w.posted_word()) << 32 | u64::from(token);
    if dir.post.swap(post, Relaxed) != post {
        s.rx.waiter.store(0, Relaxed); // the word is stored anew, behind the token
    }
    bell::name_by(s, dir, w, w.posted_word())
}

/// The peer (slot + 1) in whose log this connection would be posted; None: it posts nothing for us.
pub fn writer_of(s: &Sock) -> Option<u32> {
    let slot = s.peer.load(Relaxed);
    peers::get(slot).filter(|p| p.is_kin() && !s.is_linked()).map(|_| slot)
}
