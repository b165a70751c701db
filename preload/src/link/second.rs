//! The second link of a group, over another device of each host: this end's part of setting it up.
//!
//! The machine says when ([`Event::SecondLinkDue`], [`Event::LinkOffered`]); to look for a port and to open its device may
//! take milliseconds, so the service thread does it ([`State::second_links`]). Between two libsmcr only. A link that does not come
//! up leaves the group as it is. One that has failed is replaced in the same way.
//!
//! [`Event::SecondLinkDue`]: smcr_proto::smc::link::Event::SecondLinkDue
//! [`Event::LinkOffered`]: smcr_proto::smc::link::Event::LinkOffered

use super::group::{Group, Second};
use super::lock::now;
use super::one::{Link, PeerEnd};
use super::state::State;
use crate::log;
use crate::sys::{Errno, Res};
use crate::verbs::device::Device;
use crate::verbs::port;
use crate::verbs::qp::Remote;
use smcr_proto::smc::Time;
use smcr_proto::smc::handshake::Role;
use smcr_proto::smc::id::Mtu;
use smcr_proto::smc::link::NewLink;
use smcr_proto::smc::list::List;
use smcr_proto::smc::llc::{AddLink, MAX_RKEYS, RkeyMap};

impl State {
    /// Sets up what groups have asked for.
    pub(super) fn second_links(&mut self) {
        for place in 0..self.groups.len() {
            let Some(what) = self.groups[place].as_mut().and_then(|g| g.second.take()) else { continue };
            let done = self.second_link(place, &what);
            let Some(group) = &mut self.groups[place] else { continue };
            if let Err(e) = done {
                log::debug!(target: "smcr::link", errno = e.0, "no second link");
                if let Second::Answer(_) = what {
                    group.with_machine(|m| m.reject_link());
                }
            }
            group.run(&self.devices, now());
            self.look_at_group(place);
        }
    }

    /// A port of this device has come up, or one that was not there before: groups that have lost a link try again.
    pub fn port_up(&mut self) {
        for place in 0..self.groups.len() {
            if let Some(group) = self.groups[place].as_mut().filter(|g| g.ours && g.over.is_none()) {
                group.with_machine(|m| m.retry_link(now()));
                group.run(&self.devices, now());
            }
        }
    }

    fn second_link(&mut self, place: usize, what: &Second) -> Res<()> {
        self.clear_vacant(place)?;
        let group = self.groups[place].as_ref().ok_or(Errno(libc::ENOENT))?;
        let left = group.links.iter().position(Link::is_usable).ok_or(Errno(libc::ENOTCONN))?;
        let first = group.links[left].port.clone();
        // The client's end has to be near the server's; the server cannot know of the client's yet.
        let near = match what {
            Second::Offer => None,
            Second::Answer(m) => Some(m.gid.ipv4().ok_or(Errno(libc::EAFNOSUPPORT))?),
        };
        let port = port::another(&first, near, &group.tried).ok_or(Errno(libc::ENODEV))?;
        let mut link = self.new_link(&port)?;
        let own = match self.describe((place, left), &mut link, what) {
            Ok(own) => own,
            Err(e) => {
                self.drop_link(place, link);
                return Err(e);
            }
        };
        let now = now();
        let group = self.groups[place].as_mut().ok_or(Errno(libc::ENOENT))?;
        if let Second::Offer = what {
            group.tried.push(port.gid);
        }
        let mut agreed = None;
        group.with_machine(|m| {
            let said = match what {
                Second::Offer => m.offer_link(now, &own),
                Second::Answer(_) => m.accept_link(now, &own),
            };
            agreed = said.ok();
        });
        let Some(at) = agreed else {
            self.drop_link(place, link);
            return Err(Errno(libc::ECANCELED));
        };
        // The machine names links by their places.
        match group.links.get_mut(at) {
            Some(old) => *old = link,
            None => group.links.push(link),
        }
        Ok(())
    }

    /// The place of a link that is over is to be taken by another one: what has come by it is taken, and no connection may
    /// be left there.
    fn clear_vacant(&mut self, place: usize) -> Res<()> {
        self.poll_all();
        let group = self.groups[place].as_ref().ok_or(Errno(libc::ENOENT))?;
        let vacant = group.machine.as_ref().and_then(|m| m.vacant()).ok_or(Errno(libc::EEXIST))?;
        let used = |l: &Link| l.users > 0 || !l.is_down;
        let left = self.slots.iter().flatten().any(|s| s.group == Some(place) && s.link == vacant);
        if group.links.get(vacant).is_some_and(used) || group.links.len() > vacant && left {
            return Err(Errno(libc::EBUSY));
        }
        let State { groups, send_rings, devices, .. } = self;
        if let Some(group) = groups[place].as_mut()
            && let Some(old) = group.links.get_mut(vacant)
        {
            // What memories were called there is forgotten: all of them are told anew.
            old.close(send_rings.iter_mut().chain([&mut group.rings]), devices);
        }
        Ok(())
    }

    /// What this end says of its second link; as client its queue pair is made ready for the server's.
    fn describe(&mut self, (place, left): (usize, usize), link: &mut Link, what: &Second) -> Res<NewLink> {
        let device = &self.devices[link.device];
        let mut mtu = device.mtu()?;
        let group = self.groups[place].as_mut().ok_or(Errno(libc::ENOENT))?;
        let mut peer_gid = group.links[left].peer.map(|p| p.gid).unwrap_or_default();
        if let Second::Answer(m) = what {
            mtu = connect(link, device, m, mtu)?;
            peer_gid = m.gid;
        }
        let mut rkeys = List::new();
        for [old, new] in group.rings.unannounced(group.links[left].domain()?, link.domain()?, MAX_RKEYS)? {
            rkeys.push(RkeyMap { known: old.rkey, new: new.rkey, address: new.address });
        }
        let qpn = link.qp.as_ref().ok_or(Errno(libc::ENOTCONN))?.number();
        Ok(NewLink { mac: link.port.mac, gid: link.port.gid, qpn, psn: link.psn, mtu, peer_gid, rkeys })
    }

    /// A link that no group has taken.
    fn drop_link(&mut self, place: usize, mut link: Link) {
        let Self { send_rings, devices, groups, .. } = self;
        let rings = groups[place].as_mut().map(|g| &mut g.rings);
        link.close(send_rings.iter_mut().chain(rings), devices);
    }
}

impl Group {
    /// Server: the client has agreed, this is its end.
    pub(super) fn second_accepted(&mut self, devices: &[Device], place: usize, answer: &AddLink) {
        let Some(link) = self.links.get_mut(place) else { return };
        let device = &devices[link.device];
        let ready = device.mtu().and_then(|mtu| connect(link, device, answer, mtu)).and_then(|_| link.raise(device));
        if let Err(e) = ready {
            log::warn!(target: "smcr::link", errno = e.0, "the second link could not be made ready");
            self.with_machine(|m| m.handle_link_down(place));
        }
    }

    /// It did not come up. A server offers its other addresses, one after the other: which of them the client is near to it cannot
    /// know.
    pub(super) fn drop_second(&mut self, devices: &[Device], link: usize) {
        self.put_down(devices, link);
        log::info!(target: "smcr::link", "the second link did not come up");
        if self.ours && self.role == Role::Server {
            self.call_for(Second::Offer);
        }
    }

    /// The peer has to know what each ring is called on both links, before the one that it uses fails.
    pub(super) fn announce_new(&mut self, now: Time) {
        let [first, second] = &self.links[..] else { return };
        if !first.is_usable() || !second.is_usable() {
            return;
        }
        let ends = first.domain().and_then(|one| Ok((one, second.domain()?)));
        match ends.and_then(|(one, other)| self.rings.unannounced(one, other, usize::MAX)) {
            Ok(fresh) => self.announce.extend(fresh),
            Err(e) => log::warn!(target: "smcr::link", errno = e.0, "a ring could not be registered for the second link"),
        }
        self.announce_next(now);
    }

    /// One after the other: each waits for the answer to the one before.
    pub(super) fn announce_next(&mut self, now: Time) {
        if let (Some(keys), Some(m)) = (self.announce.front(), &mut self.machine)
            && m.confirm_rkey(now, *keys).is_ok()
        {
            self.announce.pop_front();
        }
    }
}

/// The peer's end of a link is this. The path MTU.
fn connect(link: &mut Link, device: &Device, peer: &AddLink, mtu: Mtu) -> Res<Mtu> {
    let theirs = Mtu::from_code(peer.mtu_code).map_err(|_| Errno(libc::EINVAL))?;
    let remote = Remote { gid: peer.gid, qpn: peer.qpn, psn: peer.psn, mtu: mtu.min(theirs) };
    link.receive_from(device, &remote)?;
    link.peer = Some(PeerEnd { gid: peer.gid, mac: peer.mac, qpn: peer.qpn });
    Ok(remote.mtu)
}
