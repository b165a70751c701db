//! A link of two is down: its connections go on over the other one, and nothing is lost.
//!
//! A sender goes back to what the peer is known to have read, says so by a failover message, and writes from there again
//! (`proto::smc::conn`). A peer that says so has left the link: this end leaves it as well before it tells the peer anything
//! more, so that nothing that is still under way there is written over newer bytes. Such a message is looked at when
//! everything has been taken that had come by the old link ([`State::release_held`]); what is found there later does not count.

use super::cover;
use super::lock::{mark, now};
use super::one::Link;
use super::state::{State, pool_of};
use crate::log;
use crate::verbs::device::DeviceEvent;
use crate::verbs::port;
use crate::verbs::uevent::Heard;
use smcr_proto::smc::cdc::{Cdc, ProducerFlags};
use smcr_proto::smc::conn::Violation;
use smcr_proto::smc::immediate::Immediate;

/// What came for a connection, and the place of the group and of the link.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub place: usize,
    pub link: usize,
    pub index: u32,
    pub what: What,
}

/// What it is.
#[derive(Clone, Copy)]
pub(super) enum What {
    Message(Cdc),
    /// A write of so many bytes that announces itself.
    Write(u32, Immediate),
}

impl State {
    /// A link of a group is broken.
    pub fn fail_link(&mut self, place: usize, link: usize) {
        if let Some(group) = &mut self.groups[place] {
            group.fail(&self.devices, link, now());
        }
        self.look_at_group(place);
    }

    /// A device has said something: what used its links goes on elsewhere, if there is another link. Else a port that
    /// comes back in time is waited for.
    pub fn device_event(&mut self, number: usize, event: DeviceEvent) {
        let of = |l: &Link| l.device == number && !l.is_down;
        let hit = |l: &Link| match event {
            DeviceEvent::QueuePair(address) => of(l) && l.qp.as_ref().is_some_and(|q| q.is_at(address)),
            DeviceEvent::Fatal | DeviceEvent::PortDown => of(l),
            DeviceEvent::PortUp | DeviceEvent::Other => false,
        };
        if event == DeviceEvent::PortUp {
            self.port_up();
        }
        for place in 0..self.groups.len() {
            let Some(group) = &self.groups[place] else { continue };
            let hit: Vec<usize> = (0..group.links.len()).filter(|l| hit(&group.links[*l])).collect();
            for link in hit {
                let other = self.groups[place].as_ref().is_some_and(|g| g.other_than(link).is_some());
                if event != DeviceEvent::PortDown || other {
                    self.fail_link(place, link);
                }
            }
        }
    }

    /// RDMA devices have gone, or come. What used one that is to go leaves it, for the kernel waits for that.
    pub fn devices_changed(&mut self, heard: Heard) {
        for number in 0..self.devices.len() {
            if heard.removed && self.devices[number].is_open() && !port::can_be_opened(&self.devices[number].name) {
                self.remove_device(number);
            }
        }
        if heard.added {
            self.port_up();
        }
    }

    fn remove_device(&mut self, number: usize) {
        log::warn!(target: "smcr::link", device = self.devices[number].name.as_str(), "the device is removed");
        self.poll_all();
        self.device_event(number, DeviceEvent::Fatal);
        let State { groups, send_rings, devices, .. } = self;
        for group in groups.iter_mut().flatten() {
            for link in group.links.iter_mut().filter(|l| l.device == number) {
                link.close(send_rings.iter_mut().chain([&mut group.rings]), devices);
            }
        }
        self.devices[number].close();
        cover::note_devices(self);
    }

    /// Takes what came, or keeps it for [`State::release_held`] if a failover message is, or stands before it.
    pub(super) fn take_or_hold(&mut self, arrival: Arrival) {
        let moved = matches!(arrival.what, What::Message(m) if m.producer_flags.contains(ProducerFlags::FAILOVER));
        if moved || self.held.iter().any(|h| h.index == arrival.index && h.link == arrival.link) {
            self.held.push(arrival);
        } else {
            self.take(arrival);
        }
    }

    /// All devices have been looked at since these were kept.
    pub(super) fn release_held(&mut self) {
        for arrival in std::mem::take(&mut self.held) {
            let Some(slot) = self.slot(arrival.index).filter(|s| s.group == Some(arrival.place)) else { continue };
            let old = slot.link;
            if old != arrival.link && matches!(arrival.what, What::Message(_)) {
                log::debug!(target: "smcr::link", link = old, "the peer has left a link");
                self.fail_link(arrival.place, old);
            }
            self.take(arrival);
        }
    }

    fn take(&mut self, arrival: Arrival) {
        let Arrival { place, link, index, what } = arrival;
        let slot = self.slots.get_mut(index as usize).and_then(Option::as_deref_mut);
        // The token is looked up in the whole process, so the group is checked as well.
        let Some(slot) = slot.filter(|s| s.group == Some(place)) else { return };
        let taken = match what {
            What::Message(cdc) => slot.handle_cdc(&cdc),
            // It says how much is new, so it counts in its order alone. One whose handshake is not over here has not been moved with the others.
            What::Write(len, immediate) if slot.link == link || !slot.active => slot.handle_immediate(len, immediate),
            What::Write(..) => return,
        };
        match taken {
            Ok(bytes) => self.took(place, link, index, bytes),
            // Between two libsmcr both state how far they are, and go on over TCP.
            Err(Violation::Lost) if self.want_back(index) => {
                log::warn!(target: "smcr::link", index, "bytes were lost with a link: on over TCP");
            }
            Err(violation) => {
                if let Some(slot) = self.slot(index) {
                    slot.tainted = true;
                    slot.has_lost = violation == Violation::Lost;
                    slot.broken(None);
                }
                mark(index);
            }
        }
    }

    /// Moves the connections of links that are down, as far as they have a peer.
    pub(super) fn move_connections(&mut self, place: usize) {
        let Some(group) = self.groups[place].as_ref().filter(|g| g.over.is_none()) else { return };
        for from in (0..group.links.len()).filter(|l| group.links[*l].is_down).collect::<Vec<_>>() {
            let slots = self.slots.iter().flatten();
            let hit = slots.filter(|s| s.group == Some(place) && s.link == from && s.active);
            for index in hit.map(|s| s.index).collect::<Vec<u32>>() {
                if !self.move_connection(place, index, from) {
                    log::warn!(target: "smcr::link", index, "the peer's ring has no known name on the other link");
                    if let Some(slot) = self.slot(index) {
                        slot.stranded = true;
                    }
                    if !self.want_back(index)
                        && let Some(slot) = self.slot(index)
                    {
                        slot.link_down();
                    }
                }
                mark(index);
            }
        }
    }

    /// False: it can't go.
    fn move_connection(&mut self, place: usize, index: u32, from: usize) -> bool {
        let (Some(Some(slot)), Some(Some(group))) = (self.slots.get_mut(index as usize), self.groups.get_mut(place)) else {
            return true;
        };
        let Some(to) = group.other_than(from) else { return false };
        group.links[from].users = group.links[from].users.saturating_sub(1);
        group.links[from].leave_line(index);
        group.links[to].users += 1;
        let uncompleted = slot.move_to(to);
        let domain = group.links[to].domain();
        let key = domain.and_then(|d| pool_of(&mut self.send_rings, slot.tx.1)?.keys(slot.tx.0, d));
        let machine = group.machine.as_ref();
        let there = slot.conn.as_ref().and_then(|c| c.peer_rkey()).and_then(|k| machine?.peer_key(from, k, to));
        let (Ok(key), Some((rkey, address))) = (key, there) else { return false };
        slot.tx_key = key.lkey;
        slot.go_on(rkey, address, uncompleted);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::fin;
    use crate::link::leave::Leaving;
    use crate::link::rig;
    use smcr_proto::smc::cdc::ConnFlags;
    use smcr_proto::smc::cursor::Cursor;
    use smcr_proto::smc::handshake::Role;
    use smcr_proto::smc::id::Rkey;
    use smcr_proto::smc::immediate;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn one_that_comes_back_from_its_way_to_tcp_repeats_what_was_lost_meanwhile() {
        let (mut all, _, id) = rig::one(Role::Client, 2);
        let slot = rig::slot(&mut all, id);
        let conn = slot.conn.as_mut().unwrap();
        conn.write(100, false).unwrap();
        conn.poll_cdc().unwrap();
        (slot.pumped, slot.in_flight) = (100, 1);
        assert!(all.want_back(id.index));
        let slot = rig::slot(&mut all, id);
        let uncompleted = slot.move_to(1);
        slot.go_on(Rkey(9), 0x9000_0000, uncompleted);
        assert_eq!(all.sent_by_link(id.index), (100, 0), "the peer may have it all");
        assert_eq!(all.state_back(id.index), Some(0));
        all.cancel_back(id.index);
        let slot = rig::slot(&mut all, id);
        let conn = slot.conn.as_ref().unwrap();
        assert_eq!((slot.leaving, slot.pumped, conn.peer_rkey()), (Leaving::No, 0, Some(Rkey(9))));
        assert!(conn.is_moving() && conn.is_repeating());
    }

    #[test]
    fn one_that_comes_back_to_a_link_where_the_ring_has_no_name_has_ended() {
        let (mut all, place, id) = rig::one(Role::Client, 2);
        all.groups[place].as_mut().unwrap().links[0].is_down = true;
        all.move_connections(place);
        let slot = rig::slot(&mut all, id);
        assert_eq!((slot.leaving, slot.link), (Leaving::Wanted, 1));
        all.cancel_back(id.index);
        let slot = rig::slot(&mut all, id);
        assert!(slot.rx_dir().fin.load(Relaxed) & fin::CLOSED != 0);
        assert!(slot.conn.as_mut().unwrap().write(1, false).is_err(), "nothing goes to the old name");
    }

    #[test]
    fn room_that_was_told_while_it_left_is_there_when_it_comes_back() {
        let (mut all, _, id) = rig::one(Role::Client, 1);
        let slot = rig::slot(&mut all, id);
        let conn = slot.conn.as_mut().unwrap();
        conn.write(100, false).unwrap();
        conn.poll_cdc().unwrap();
        let token = conn.token();
        slot.leaving = Leaving::Stated(0);
        let flags = (ProducerFlags::empty(), ConnFlags::empty());
        let consumer = Cursor::at(60, rig::SIZE.bytes());
        let cdc = Cdc { sequence: 1, token, producer: Cursor::ZERO, consumer, producer_flags: flags.0, conn_flags: flags.1 };
        slot.handle_cdc(&cdc).unwrap();
        assert_eq!(slot.tx_dir().tail.load(Relaxed), 0);
        all.cancel_back(id.index);
        assert_eq!(rig::slot(&mut all, id).tx_dir().tail.load(Relaxed), 60);
    }

    #[test]
    fn a_peer_that_is_ahead_with_the_handshake_may_have_changed_the_link_already() {
        let (mut all, place, id) = rig::one(Role::Server, 2);
        let slot = rig::slot(&mut all, id);
        let token = slot.conn.as_ref().unwrap().token();
        for (is_active, sequence, received) in [(false, 1, 50), (true, 2, 50)] {
            rig::slot(&mut all, id).active = is_active;
            let immediate = Immediate { name: immediate::name(token), sequence, consumed: 0 };
            all.take_or_hold(Arrival { place, link: 1, index: id.index, what: What::Write(50, immediate) });
            assert_eq!(rig::slot(&mut all, id).conn.as_ref().unwrap().received_bytes().0, received, "active: {is_active}");
        }
    }
}
