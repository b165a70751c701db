//! Whose socket the connecting end is, where the offer for it comes from another user.
//!
//! The proof in the stream shows that whoever has offered has the connecting end, or can have its holder send what he likes, as one of a
//! proxy's clients can. So the kernel must say too that the connecting socket is of the user at the channel: by sock_diag
//! or, in services that have no netlink (hazard: hardened units), by the table in /proc. Users that it shows to this process as one
//! (65534) can't be told apart: `peer_uid=anyone` takes their word. Who is of our own user could trace us, and is not asked
//! about. Called by [`super::server`] when an offer comes.

use super::client;
use crate::control;
use crate::sys::{creds, net, tcp_table};
use crate::transport::peers::{OVERFLOW_UID, Peer};

/// Whether the other end of `sock` is a socket of the peer's user.
pub fn is_of(peer: &Peer, sock: i32) -> bool {
    let (_, uid) = peer.who();
    if peer.is_kin() || uid == 0 || control::takes_anyone() {
        return true;
    }
    let (Ok(local), Ok(remote)) = (net::local_addr(sock), net::peer_addr(sock)) else { return false };
    let is_known = || uid != OVERFLOW_UID || creds::sees_all_users();
    let is_its = !peer.is_doubted() && is_known() && owner(&local, &remote) == Some(uid);
    if !is_its {
        peer.doubt(); // each look takes time, and it may name whatever it likes
    }
    is_its
}

fn owner(local: &net::Addr, remote: &net::Addr) -> Option<u32> {
    // Not all can ask, and those that are bound to a device are not found so.
    client::facts(local, remote).ok().map(|f| f.uid).or_else(|| {
        let other = || tcp_table::owner(&remote.other_form(), &local.other_form());
        tcp_table::owner(remote, local).or_else(other)
    })
}
