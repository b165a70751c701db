//! The members of a hooked epoll set, under its lock: by descriptor, by data word, and the hot list.
//!
//! Every member is kept, so that a kernel event can be told by the program's data word, which is never
//! touched. Members whose socket has a direction in memory are *hot* (looked at by every wait) or
//! *cold*: *posted* (a log of the peer's tells of them, [`super::logs`]), or their doorbell byte is armed, and the kernel wakes the set. Used by `ready` through [`super::set`].

use super::buried::Buried;
use super::index::Index;
use super::logs::Logs;
use super::member::{LITTLE, Member, NO_MEMBER};
use crate::family::sock::Sock;
use crate::sys::mem;
use crate::table;
use std::sync::atomic::Ordering::*;

/// The part under the lock.
pub struct Inner {
    members: *mut Member,
    cap: u32,
    used: u32,
    free: u32,
    /// Descriptor -> member.
    pub by_fd: Index,
    /// Data word -> member.
    pub by_data: Index,
    hot: *mut u32,
    /// Members in the hot list.
    pub hot_len: u32,
    /// The logs by which posted members are heard of.
    pub logs: Logs,
    /// Members below this were looked at last for what they could give back.
    pub rested: u32,
    /// Where the next walk of the hot list begins (fairness with a small maxevents).
    pub turn: u32,
    /// Changes of `engine::changes` that were taken in.
    pub changes: u64,
    /// Somebody has the lock, or has left it otherwise than by giving it back ([`super::torn`]).
    pub held: bool,
    /// Members served by the library.
    pub ours: u32,
    /// Members that are orphans: they alone have to be searched for.
    orphans: u32,
    /// The eventfd is registered in the kernel's set.
    pub bell_registered: bool,
    /// Which ears of the waiter are as well (`engine::ear::join`).
    pub ears: u32,
    /// The channel of links that is in the kernel's set, or -1.
    pub channel: i32,
    /// A member became hot since the hot ones last got the waiter's name.
    pub unnamed: bool,
    /// How often a member was put into the hot list, or was in it and something came of it: what was prepared for a sleep before that is not.
    pub heats: u64,
    /// What `heats` was at the last of these preparations.
    pub prepared: u64,
    /// A look told what is to be told to others as well.
    pub left: bool,
    /// A look has taken a ring of the set's waiter, and not looked at the members since.
    pub heard: bool,
    /// One ended where the program's array was full.
    pub cut: bool,
    /// The last look at the kernel left no room for the hot ones, whose turn comes first at the next.
    pub kernel_filled: bool,
    /// Tick from which the kernel is to be looked at again.
    pub kernel_look: u64,
    /// Ticks that the last look took.
    pub kernel_took: u64,
    /// Ticks between the last look at it and the next one.
    pub kernel_rest: u64,
    /// Registrations of the library's own that have ended.
    pub buried: Buried,
}

impl Inner {
    /// The set has no waiter now: the next one is not registered, nor are its ears.
    pub fn forget_waiter(&mut self) {
        self.bell_registered = false;
        self.ears = 0;
        self.unpost_all();
    }

    /// No member is posted any more: what is names a waiter that is not to be relied upon.
    pub fn unpost_all(&mut self) {
        let entries = if self.logs.used() == 0 { 0 } else { self.used };
        for m in 0..entries {
            if self.member(m).log != 0 {
                self.heat(m);
            }
        }
        self.logs.clear();
    }

    /// Takes every member out and gives the memory back.
    pub fn empty(&mut self) {
        for m in 0..self.used {
            if self.member(m).fd >= 0 {
                self.count_out(m);
            }
        }
        self.logs.clear();
        self.by_fd.clear();
        self.by_data.clear();
        if self.cap > 0 {
            mem::unmap(self.members.cast(), self.cap as usize * size_of::<Member>());
            mem::unmap(self.hot.cast(), self.cap as usize * 4);
        }
        *self = Inner {
            members: std::ptr::null_mut(),
            cap: 0,
            used: 0,
            free: 0,
            by_fd: Index::new(),
            by_data: Index::new(),
            hot: std::ptr::null_mut(),
            hot_len: 0,
            logs: Logs::none(),
            rested: 0,
            turn: 0,
            held: self.held,
            changes: 0,
            ours: 0,
            orphans: 0,
            bell_registered: false,
            ears: 0,
            channel: -1,
            unnamed: false,
            heats: self.heats,
            prepared: self.prepared,
            left: false,
            heard: false,
            cut: false,
            kernel_filled: false,
            kernel_look: 0,
            kernel_took: 0,
            kernel_rest: 0,
            buried: std::mem::replace(&mut self.buried, Buried::none()), // threads may come from before
        };
    }

    /// A member by number.
    pub fn member(&self, m: u32) -> &Member {
        debug_assert!(m < self.used);
        // SAFETY: below `used`, inside the mapping.
        unsafe { &*self.members.add(m as usize) }
    }

    /// A member by number, to change.
    pub fn member_mut(&mut self, m: u32) -> &mut Member {
        debug_assert!(m < self.used);
        // SAFETY: as above, exclusive through &mut self.
        unsafe { &mut *self.members.add(m as usize) }
    }

    /// The data word, if what the kernel tells by it is not for the program.
    pub fn own_word(&self, m: u32) -> Option<u64> {
        let mb = self.member(m);
        ((mb.ours || mb.ghost) && (mb.kernel != mb.events || mb.has_edges_of_both())).then_some(mb.data)
    }

    /// Number of member entries (free ones included).
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Adds a member; None without memory.
    pub fn add(&mut self, fd: i32, events: u32, data: u64, generation: u32) -> Option<u32> {
        let m = match self.free {
            0 => {
                if self.used == self.cap && !self.grow() {
                    return None;
                }
                self.used += 1;
                self.used - 1
            }
            n => {
                let m = n - 1;
                self.free = self.member(m).data as u32;
                m
            }
        };
        *self.member_mut(m) = Member { fd, events, data, kernel: events, fresh: true, generation, ..NO_MEMBER };
        if !self.by_fd.add(fd as u64, m) || !self.by_data.add(data, m) {
            self.by_fd.remove(fd as u64, m);
            self.free_member(m);
            return None;
        }
        Some(m)
    }

    /// Takes a member out.
    pub fn drop_member(&mut self, m: u32) {
        let mb = *self.member(m);
        if mb.orphan {
            self.orphans -= 1;
        } else {
            self.by_fd.remove(mb.fd as u64, m);
        }
        self.by_data.remove(mb.data, m);
        self.count_out(m);
        self.unpost(m);
        self.cool(m);
        if mb.ours {
            self.ours -= 1;
        }
        self.free_member(m);
    }

    /// The member's descriptor is closed, and another one of its socket, `twin`, is open.
    pub fn orphan(&mut self, m: u32, twin: i32) {
        let fd = self.member(m).fd;
        if self.member(m).log != 0 {
            self.heat(m); // what tells of it names the number
        }
        self.by_fd.remove(fd as u64, m);
        self.orphans += 1;
        let mb = self.member_mut(m);
        mb.fd = twin;
        mb.named = fd;
        mb.orphan = true;
    }

    /// A descriptor that is about to be named: an orphan that had the number, and whose socket it is, is found by it again.
    pub fn adopt(&mut self, fd: i32) -> Option<u32> {
        if self.orphans == 0 || self.by_fd.one(fd as u64).is_some() {
            return None;
        }
        let generation = table::sock(fd)?.generation.load(Relaxed);
        let is_it = |mb: &Member| mb.orphan && mb.named == fd && mb.generation == generation;
        let m = (0..self.used).find(|m| is_it(self.member(*m)))?;
        if !self.by_fd.add(fd as u64, m) {
            return None;
        }
        self.orphans -= 1;
        let mb = self.member_mut(m);
        mb.fd = fd;
        mb.orphan = false;
        Some(m)
    }

    /// Whether a member can't be named.
    pub fn has_orphans(&self) -> bool {
        self.orphans != 0
    }

    /// An orphan whose socket is open by this descriptor.
    pub fn orphan_of(&self, fd: i32) -> Option<u32> {
        let entries = if self.orphans == 0 { 0 } else { self.used };
        (0..entries).find(|m| self.member(*m).orphan && self.member(*m).fd == fd)
    }

    fn free_member(&mut self, m: u32) {
        let next = self.free;
        *self.member_mut(m) = Member { data: u64::from(next), ..NO_MEMBER };
        self.free = m + 1;
    }

    /// Counts the set in its member's socket.
    pub fn count_in(&mut self, m: u32) {
        let mb = self.member_mut(m);
        if !mb.counted
            && let Some(s) = table::sock(mb.fd)
        {
            mb.counted = true;
            s.sets.fetch_add(1, AcqRel);
        }
    }

    /// The set is no waiter of its member's socket any more.
    pub fn count_out(&mut self, m: u32) {
        self.unhide(m);
        if let Some(s) = self.socket(m).filter(|_| self.member(m).counted) {
            s.sets.fetch_sub(1, AcqRel);
        }
        self.member_mut(m).counted = false;
    }

    /// The member's waiter may be one that we never see.
    pub fn hide(&mut self, m: u32) {
        if let Some(s) = self.socket(m).filter(|_| !self.member(m).hidden) {
            s.hide();
            self.member_mut(m).hidden = true;
        }
    }

    /// The member's waiters are hooked ones.
    pub fn unhide(&mut self, m: u32) {
        if let Some(s) = self.socket(m).filter(|_| self.member(m).hidden) {
            s.unhide();
        }
        self.member_mut(m).hidden = false;
    }

    /// The socket that was a member at ADD, if it is still there.
    fn socket(&self, m: u32) -> Option<&'static Sock> {
        let mb = self.member(m);
        table::sock(mb.fd).filter(|s| s.generation.load(Relaxed) == mb.generation)
    }

    /// Gives a member other data.
    pub fn set_data(&mut self, m: u32, data: u64) {
        let old = self.member(m).data;
        if old != data {
            self.by_data.remove(old, m);
            self.by_data.add(data, m);
            self.member_mut(m).data = data;
        }
    }

    /// Puts a member into the hot list.
    pub fn heat(&mut self, m: u32) {
        self.heats += 1;
        self.heat_armed(m);
    }

    /// As [`Self::heat`] one whose arrivals wake the set as it is.
    pub fn heat_armed(&mut self, m: u32) {
        self.unpost(m);
        let at = self.hot_len;
        let mb = self.member_mut(m);
        mb.idle = 0;
        mb.last = 0;
        if mb.hot {
            return;
        }
        mb.hot = true;
        mb.hot_at = at;
        mb.patience = LITTLE;
        let n = self.hot_len as usize;
        // SAFETY: the list has room for every member (`grow`).
        unsafe { *self.hot.add(n) = m };
        self.hot_len += 1;
        self.unnamed = true;
    }

    /// Takes a member out of the hot list.
    pub fn cool(&mut self, m: u32) {
        if !self.member(m).hot {
            return;
        }
        let mb = self.member_mut(m);
        mb.hot = false;
        let at = mb.hot_at;
        let n = self.hot_len as usize;
        // SAFETY: `hot_len` entries of the list are valid.
        let list = unsafe { std::slice::from_raw_parts_mut(self.hot, n) };
        let (at, last) = (at as usize, list[n - 1]);
        list[at.min(n - 1)] = last;
        self.hot_len -= 1;
        self.member_mut(last).hot_at = at as u32;
    }

    /// It is heard of otherwise than by a log.
    #[inline]
    pub fn unpost(&mut self, m: u32) {
        let log = std::mem::take(&mut self.member_mut(m).log);
        if log != 0 {
            self.logs.leave(log as usize - 1);
        }
    }

    /// Entry `i` of the hot list.
    pub fn hot(&self, i: u32) -> u32 {
        debug_assert!(i < self.hot_len);
        // SAFETY: below `hot_len`.
        unsafe { *self.hot.add(i as usize) }
    }

    fn grow(&mut self) -> bool {
        let cap = (self.cap * 2).max(64);
        let Ok(members) = mem::map_private(cap as usize * size_of::<Member>()) else { return false };
        let Ok(hot) = mem::map_private(cap as usize * 4) else {
            mem::unmap(members, cap as usize * size_of::<Member>());
            return false;
        };
        if self.cap > 0 {
            let n = self.cap as usize;
            // SAFETY: both mappings hold at least the old number of entries and do not overlap.
            unsafe {
                std::ptr::copy_nonoverlapping(self.members, members.cast(), n);
                std::ptr::copy_nonoverlapping(self.hot, hot.cast(), n);
            }
            mem::unmap(self.members.cast(), n * size_of::<Member>());
            mem::unmap(self.hot.cast(), n * 4);
        }
        self.members = members.cast();
        self.hot = hot.cast();
        self.cap = cap;
        true
    }
}
