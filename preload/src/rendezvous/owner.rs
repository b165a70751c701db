//! Whose socket the connecting end is, where the offer for it comes from another user.
//!
//! The proof in the stream shows that whoever has offered has the connecting end, or can have its holder send what he likes, as one of a
//! proxy's clients can. So the kernel must say too that the connecting socket is of the user at the channel: by sock_diag
//! or, in services that have no netlink (hazard: hardened units), by the table in /proc. Users that it shows to this process as one
//! (65534) can't be told apart: `peer_uid=anyone` takes their word. Who is of our own user could trace us, and is not asked
//! about. Called by [`super::server`] when an offer comes.

use crate::control;
use crate::family::process;
use crate::sys::{Errno, creds, diag, net, tcp_table};
use crate::transport::peers::{OVERFLOW_UID, Peer};
use smcr_proto::page::Counter;

/// Whether the other end of `sock` is a socket of the peer's user.
pub fn is_of(peer: &Peer, sock: i32) -> bool {
    let (_, uid) = peer.who();
    if peer.is_kin() || uid == 0 || control::takes_anyone() {
        return true;
    }
    let (Ok(local), Ok(remote)) = (net::local_addr(sock), net::peer_addr(sock)) else { return false };
    (uid != OVERFLOW_UID || creds::sees_all_users()) && owner(&remote, &local) == Some(uid)
}

fn owner(own: &net::Addr, peer: &net::Addr) -> Option<u32> {
    // A dual-stack socket of an IPv4 connection is one of IPv6, and its other end may be either.
    let pairs = [(*own, *peer), (own.other_form(), peer.other_form())];
    process::count(Counter::DiagQueries, 1);
    for (own, peer) in &pairs {
        match diag::lookup(own, peer) {
            Ok(facts) => return Some(facts.uid),
            Err(Errno(libc::ENOENT)) => {}
            Err(_) => return pairs.iter().find_map(|(own, peer)| tcp_table::owner(own, peer)),
        }
    }
    None
}
