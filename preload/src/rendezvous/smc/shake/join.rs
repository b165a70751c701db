//! The link side of a handshake: finds the group for a connection or makes one, and brings its link up.

use super::about::no_device;
use super::{Machine, Shake};
use crate::link::admit::Hosts;
use crate::link::lock::{self, now};
use crate::link::slot::Slot;
use crate::link::state::State;
use crate::log;
use crate::sys::{Errno, net};
use crate::verbs::qp::Remote;
use smcr_proto::reason::Reason;
use smcr_proto::smc::clc::accept::{AcceptConfirm, Endpoint};
use smcr_proto::smc::clc::proposal::Proposal;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::{Params, Role, server};
use smcr_proto::smc::llc::Family;

impl Shake {
    /// Server: of several clients' handshakes that come from one process at once the first makes the group, and the others
    /// wait for it.
    pub(super) fn look_at_proposal(&mut self) {
        let Some((proposal, choice)) = self.proposal.take() else { return };
        let hosts = self.hosts();
        let waits = lock::with(|all| {
            let gid = self.port.as_ref().map(|p| p.gid);
            all.groups.iter().flatten().any(|g| g.will_serve(proposal.peer_id, gid, hosts))
        });
        if waits == Some(true) && matches!(self.machine, Machine::Server(_)) {
            self.proposal = Some((proposal, choice));
        } else {
            self.proposed(&proposal, choice);
        }
    }

    /// Server: joins the client to a group that it has with us, or makes one.
    fn proposed(&mut self, proposal: &Proposal, choice: server::Choice) {
        let (family, ours) = (family(&choice), self.is_ours());
        let by = (self.hosts(), ours);
        let found = self.with(|all, this| {
            this.may_enter(all)?;
            let gid = this.port.as_ref().map(|p| p.gid);
            let place = all.groups.iter_mut().position(|g| {
                let Some(g) = g else { return false };
                g.serves(family, proposal, gid, by) && g.join()
            });
            // The server chooses the link, and the client finds it by what Accept says.
            let link = place.and_then(|p| all.groups[p].as_ref()?.balanced()).unwrap_or(0);
            let end = this.enter(all, place.map(|p| (p, link)), Role::Server)?;
            if let Some(Some(group)) = this.group.map(|g| &mut all.groups[g])
                && this.made
            {
                group.made_for = ours.then_some(proposal.peer_id);
            }
            Ok(end)
        });
        let first_contact = self.made;
        let Machine::Server(m) = &mut self.machine else { return };
        match found {
            Ok(end) => m.accept(now(), end, first_contact, true),
            Err(code) => m.decline(code),
        }
    }

    /// Client: finds the group that the server names, or makes one.
    pub(super) fn accepted(&mut self, accept: &AcceptConfirm) {
        let first = accept.first_contact();
        let result = self.with(|all, this| {
            this.may_enter(all).map_err(|code| (code, false))?;
            let place = if first { None } else { Some(all.join_named(accept, this.host, this.is_ours())?) };
            let end = this.enter(all, place, Role::Client).map_err(|code| (code, false))?;
            if first {
                this.receive_from(all, &accept.endpoint).map_err(|code| (code, false))?;
            }
            Ok(end)
        });
        let Machine::Client(m) = &mut self.machine else { return };
        match result {
            Ok(end) => m.confirm(end, true),
            Err((code, end_group)) => m.decline(code, end_group),
        }
    }

    /// Not where the process has forked meanwhile (`smc::gate`).
    fn may_enter(&mut self, all: &mut State) -> Result<(), Diagnosis> {
        if self.slot(all).is_some_and(|slot| slot.for_tcp) {
            self.refusal = Some((Reason::SharedByFork, Diagnosis::MEMORY));
            return Err(Diagnosis::MEMORY);
        }
        Ok(())
    }

    /// A ring in a group: that one, by this link of it, or a new one.
    fn enter(&mut self, all: &mut State, place: Option<(usize, usize)>, role: Role) -> Result<Endpoint, Diagnosis> {
        let port = self.port.as_ref().ok_or(Diagnosis::NO_SMCR_DEVICE)?;
        self.made = place.is_none();
        let (place, link) = match place {
            Some(at) => at,
            None => all.new_group(role, port, self.size).map(|place| (place, 0)).map_err(|e| {
                log::warn!(target: "smcr::link", errno = e.0, "no link group could be made");
                no_device(e)
            })?,
        };
        self.group = Some(place);
        if let Some(Some(group)) = all.groups.get_mut(place).filter(|_| self.made) {
            group.hosts = self.hosts();
        }
        let end = self.id.ok_or(Errno(libc::EINVAL)).and_then(|id| all.give_ring(id, place, link)).map_err(|e| {
            log::warn!(target: "smcr::link", errno = e.0, "no ring could be registered");
            // ENOBUFS is what the pool says at `max_memory`.
            if e.0 == libc::ENOBUFS { Diagnosis::MEMORY } else { Diagnosis::REGISTER_BUFFER }
        });
        // Its first message may come before the handshake is over.
        let ours = self.is_ours();
        if let Some(conn) = self.slot(all).and_then(|slot| slot.conn.as_mut()) {
            conn.set_libsmcr(ours);
        }
        if let Some(id) = self.id.filter(|_| !self.made) {
            all.note_joined(id, place);
        }
        end
    }

    fn receive_from(&self, all: &mut State, end: &Endpoint) -> Result<(), Diagnosis> {
        let remote = Remote { gid: end.gid, qpn: end.qpn, psn: end.psn, mtu: end.mtu };
        let group = self.group.and_then(|g| all.groups[g].as_mut()).ok_or(Diagnosis::INTERNAL)?;
        let link = &mut group.links[0];
        let device = &all.devices[link.device];
        let mtu = device.mtu().unwrap_or(remote.mtu).min(remote.mtu);
        link.receive_from(device, &Remote { mtu, ..remote }).map_err(|e| {
            log::warn!(target: "smcr::link", errno = e.0, "the queue pair could not be made ready");
            Diagnosis::LINK_READY
        })
    }

    /// First contact: LLC begins.
    pub(super) fn bring_up(&mut self, params: &Params) {
        let (is_server, ours) = (params.role == Role::Server, self.is_ours());
        let result = self.with(|all, this| {
            if is_server {
                this.receive_from(all, &params.peer)?;
            }
            let place = this.group.ok_or(Diagnosis::INTERNAL)?;
            let group = all.groups[place].as_mut().ok_or(Diagnosis::INTERNAL)?;
            group.begin(&all.devices, params, place as u32, ours, now()).map_err(|_| Diagnosis::LINK_READY)?;
            let joined = group.join();
            group.run(&all.devices, now());
            if let Some(slot) = this.slot(all) {
                slot.joined = joined;
            }
            Ok(())
        });
        self.awaits_link = true;
        if let Err(code) = result {
            self.link_failed(code);
        }
    }

    fn link_failed(&mut self, code: Diagnosis) {
        self.awaits_link = false;
        if code == Diagnosis::TIMEOUT_CONFIRM_LINK {
            self.tried = Some(false);
        }
        if self.come_back() {
            return;
        }
        match &mut self.machine {
            Machine::Client(m) => m.link_failed(now(), code),
            Machine::Server(m) => m.link_failed(now(), code),
            _ => {}
        }
    }

    pub(super) fn look_at_link(&mut self) {
        if !self.awaits_link {
            return;
        }
        let place = self.group;
        let (ready, over) = lock::with(|all| {
            let group = place.and_then(|g| all.groups.get(g)?.as_ref());
            (group.is_some_and(|g| g.is_ready), group.is_none_or(|g| g.over.is_some()))
        })
        .unwrap_or((false, true));
        if over && !ready {
            self.link_failed(Diagnosis::TIMEOUT_CONFIRM_LINK);
        } else if ready {
            // It may be over by now: `link` sees to what had come by it.
            self.awaits_link = false;
            self.tried = Some(true);
            match &mut self.machine {
                Machine::Client(m) => m.link_ready(),
                Machine::Server(m) => m.link_ready(),
                _ => {}
            }
        }
    }

    fn hosts(&self) -> Option<Hosts> {
        Some(Hosts { peer: self.host?, own: net::local_addr(self.fd).ok()?.folded().ip })
    }

    /// Its connection among all.
    pub(super) fn slot<'a>(&self, all: &'a mut State) -> Option<&'a mut Slot> {
        all.slot_of(self.id?)
    }

    fn with<T>(&mut self, f: impl FnOnce(&mut State, &mut Shake) -> T) -> T
    where
        T: FromRefusal,
    {
        lock::with(|all| f(all, self)).unwrap_or_else(T::refused)
    }
}

fn family(choice: &server::Choice) -> Family {
    match choice {
        server::Choice::V1 => Family::V1,
        server::Choice::V2(..) => Family::V2,
    }
}

/// What a step gives when the links cannot be reached (they always can from the service thread).
trait FromRefusal {
    fn refused() -> Self;
}

impl<T> FromRefusal for Result<T, Diagnosis> {
    fn refused() -> Self {
        Err(Diagnosis::INTERNAL)
    }
}

impl<T> FromRefusal for Result<T, (Diagnosis, bool)> {
    fn refused() -> Self {
        Err((Diagnosis::INTERNAL, false))
    }
}
