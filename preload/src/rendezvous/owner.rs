//! Whose socket the connecting end is, where the offer for it comes from another user.
//!
//! The proof in the stream shows that whoever has offered has the connecting end, or can have its holder send what he likes, as one of a
//! proxy's clients can. So the kernel must say too that the connecting socket is of the user at the channel: by sock_diag
//! or, in services that have no netlink (hazard: hardened units), by the table in /proc. Users that it shows to this process as one
//! (65534) can't be told apart: `peer_uid=anyone` takes their word. Who is of our own user could trace us, and is not asked
//! about. Called by [`super::server`] when an offer comes.

use crate::control;
use crate::family::process;
use crate::sys::{creds, diag, net, tcp_table};
use crate::transport::peers::{OVERFLOW_UID, Peer};
use smcr_proto::page::Counter;

/// Whether the other end of `sock` is a socket of the peer's user.
pub fn is_of(peer: &Peer, sock: i32) -> bool {
    let (_, uid) = peer.who();
    if peer.is_kin() || uid == 0 || control::takes_anyone() {
        return true;
    }
    let (Ok(local), Ok(remote)) = (net::local_addr(sock), net::peer_addr(sock)) else { return false };
    let is_known = || uid != OVERFLOW_UID || creds::sees_all_users();
    let is_its = !peer.is_doubted() && is_known() && owner(&remote, &local) == Some(uid);
    if !is_its {
        peer.doubt(); // each look takes time, and it may name whatever it likes
    }
    is_its
}

fn owner(own: &net::Addr, peer: &net::Addr) -> Option<u32> {
    // A dual-stack socket of an IPv4 connection is one of IPv6, and its other end may be either.
    let pairs = [(*own, *peer), (own.other_form(), peer.other_form())];
    process::count(Counter::DiagQueries, 1);
    let by_diag = || pairs.iter().find_map(|(own, peer)| Some(diag::lookup(own, peer).ok()?.uid));
    // Not all can ask, and those that are bound to a device are not found so.
    by_diag().or_else(|| pairs.iter().find_map(|(own, peer)| tcp_table::owner(own, peer)))
}
