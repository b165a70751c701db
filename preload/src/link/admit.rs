//! Who may join a link group: the peer that it was made with, by what CLC says of it and by where its TCP connection comes from.
//!
//! A part of [`Group`] and [`State`], under the lock of all links. Asked by the handshakes.

use super::group::Group;
use super::one::Link;
use super::state::State;
use smcr_proto::smc::clc::accept::AcceptConfirm;
use smcr_proto::smc::clc::proposal::Proposal;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::id::{Gid, PeerId};
use smcr_proto::smc::link as machine;
use smcr_proto::smc::link::key::{self, GroupKey};
use smcr_proto::smc::llc::Family;

/// The addresses of a TCP connection. Who shows a group's alone may join it: what else a CLC message says of its sender anybody
/// can say, and be written into the group's memory for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hosts {
    pub peer: [u8; 16],
    pub own: [u8; 16],
}

impl Group {
    /// What a link's peer is known by.
    pub fn key(&self, link: &Link) -> Option<GroupKey> {
        let ((peer_id, family), peer) = (self.peer?, link.peer?);
        Some(GroupKey { role: self.role, family, peer_id, gid: peer.gid, mac: peer.mac, qpn: peer.qpn })
    }

    /// Server: whether a client that says this, to this GID of ours, is the group's peer. A link that is down tells
    /// it as well: its connections have gone on over the other one.
    /// A kernel does not name itself, so its GID decides, and programs of its host with libsmcr (`ours`) have the same one.
    pub fn serves(&self, family: Family, proposal: &Proposal, own: Option<Gid>, by: (Option<Hosts>, bool)) -> bool {
        let (hosts, ours) = by;
        let named = !ours || proposal.peer_id != PeerId::default();
        let ends = |l: &Link| Some(l.port.gid) == own && self.key(l).is_some_and(|k| k.serves(family, proposal));
        self.ours == ours && named && self.is_from(hosts) && self.is_open() && self.links.iter().any(ends)
    }

    /// Whether it was made by a connection between the same addresses.
    fn is_from(&self, hosts: Option<Hosts>) -> bool {
        hosts.is_some() && self.hosts == hosts
    }

    /// Client: the same of the server's address alone.
    pub fn is_with(&self, peer: Option<[u8; 16]>) -> bool {
        peer.is_some() && self.hosts.map(|h| h.peer) == peer
    }

    /// Server: whether this process's client is the one for whom the group is being made.
    pub fn will_serve(&self, client: PeerId, own: Option<Gid>, hosts: Option<Hosts>) -> bool {
        let open = self.machine.as_ref().is_some_and(|m| m.state() == machine::State::Active);
        let same = self.made_for == Some(client) && self.is_from(hosts) && Some(self.links[0].port.gid) == own;
        !open && self.over.is_none() && same
    }
}

impl State {
    /// Client: joins the group that an Accept of this host's names; which it is, and which link. The error is the code to decline with, and
    /// whether the server has to end the group.
    /// A link that waits for the card to say that the answer to Confirm Link has arrived counts: who names it has that answer.
    /// `ours`: the peer is a libsmcr, with which rings have another size; a group is of one kind.
    pub fn join_named(&mut self, accept: &AcceptConfirm, peer: Option<[u8; 16]>, ours: bool) -> Result<(usize, usize), (Diagnosis, bool)> {
        let mut open = Vec::new();
        for (place, group) in self.groups.iter().enumerate() {
            let Some(group) = group.as_ref().filter(|g| g.is_active()) else { continue };
            let links = group.links.iter().enumerate().filter(|(_, l)| l.is_usable() || l.is_confirming());
            open.extend(links.filter_map(|(link, l)| Some(((place, link), group.key(l)?))));
        }
        let (place, link) = open[key::find(open.iter().map(|(_, key)| key), accept)?].0;
        let Some(Some(group)) = self.groups.get_mut(place) else { return Err((Diagnosis::NO_ACTIVE_LINK, false)) };
        if !group.is_with(peer) || group.ours != ours {
            // Another host's, who has nothing to do with what is said of it here, or one that this peer's connections do not go into.
            return Err((Diagnosis::NO_SUCH_LINK, false));
        }
        if !group.join() {
            return Err((Diagnosis::NO_ACTIVE_LINK, false));
        }
        if !group.links[link].is_ready {
            group.ready(link);
        }
        Ok((place, link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::rig;
    use smcr_proto::smc::clc::accept::Form;
    use smcr_proto::smc::clc::proposal::{OfferV2, Release};
    use smcr_proto::smc::handshake::Role;
    use smcr_proto::smc::list::List;

    #[test]
    fn only_its_own_host_and_a_named_libsmcr_may_join_a_group() {
        let mut all = State::EMPTY;
        let place = rig::group(&mut all, Role::Server, 1);
        let group = all.groups[place].as_mut().unwrap();
        let own = Some(rig::port(1).gid);
        let end = rig::peer(1);
        let v2 = Some(OfferV2 { gid: end.gid, release: Release::V20, eids: List::new() });
        let named = Proposal { peer_id: end.peer_id, gid: end.gid, mac: end.mac, v1: None, v2 };
        let unnamed = Proposal { peer_id: PeerId::default(), ..named };
        let stranger = Some(Hosts { peer: [9; 16], ..rig::HOSTS });
        let serves = |g: &Group, p: &Proposal, hosts, ours| g.serves(Family::V2, p, own, (hosts, ours));
        assert!(serves(group, &named, Some(rig::HOSTS), true));
        assert!(!serves(group, &unnamed, Some(rig::HOSTS), true), "libsmcr names itself");
        assert!(!serves(group, &named, stranger, true) && !serves(group, &named, None, true));
        assert!(group.is_with(Some(rig::HOSTS.peer)) && !group.is_with(Some([9; 16])) && !group.is_with(None));
        group.ours = false;
        assert!(serves(group, &unnamed, Some(rig::HOSTS), false), "a kernel does not");
        assert!(!serves(group, &unnamed, stranger, false));
        (group.machine, group.made_for) = (None, Some(end.peer_id));
        assert!(group.will_serve(end.peer_id, own, Some(rig::HOSTS)) && !group.will_serve(end.peer_id, own, stranger));
    }

    #[test]
    fn a_server_that_names_a_link_has_the_answer_by_which_it_was_confirmed() {
        let mut all = State::EMPTY;
        let place = rig::group(&mut all, Role::Client, 2);
        let group = all.groups[place].as_mut().unwrap();
        group.is_ready = false;
        group.links.iter_mut().for_each(Link::answers);
        let form = Form::V2 { eid: Default::default(), first_contact: None };
        let accept = AcceptConfirm { endpoint: rig::peer(1), form };
        assert_eq!(all.join_named(&accept, Some([9; 16]), true), Err((Diagnosis::NO_SUCH_LINK, false)));
        assert!(!all.groups[place].as_ref().unwrap().is_ready, "a stranger proves nothing");
        assert_eq!(all.join_named(&accept, Some(rig::HOSTS.peer), false), Err((Diagnosis::NO_SUCH_LINK, false)));
        assert_eq!(all.join_named(&accept, Some(rig::HOSTS.peer), true), Ok((place, 0)), "the card has not said so yet");
        let group = all.groups[place].as_mut().unwrap();
        assert!(group.is_ready && group.links[0].is_usable() && !group.links[1].is_usable());
        group.links[0].is_down = true;
        assert_eq!(all.join_named(&accept, Some(rig::HOSTS.peer), true), Err((Diagnosis::NO_SUCH_LINK, false)));
    }
}
