//! Memory of links: ring buffers in registered slabs, and header pages.
//!
//! A slab is one mapping of equal elements. Rings that the peer writes into (RMBEs) lie in slabs that
//! belong to one link group and are registered with its peer's right to write, so no peer reaches
//! another's; send rings lie in slabs of the process that only this end reads. A slab is registered in the domain of each
//! link that uses it. Slabs are shared with forked children (`sys::device`) and live as long as their pool.

use crate::config;
use crate::family::process;
use crate::layout::{HEADER, RegionHeader};
use crate::sys::{Errno, Res, device};
use crate::verbs::domain::Domain;
use crate::verbs::qp::Memory;
use smcr_proto::smc::id::{Rkey, RmbeIndex};
use smcr_proto::smc::link::OwnKey;

/// Elements of the first slab of a pool; each further one has twice as many.
const FIRST: usize = 4;
/// Most elements of a slab: RMBE indexes are one byte and begin at 1.
const MOST: usize = 255;
/// The same where the peer does not write: such a slab is registered once for each link that uses it.
const MOST_OWN: usize = 32;

/// One mapping.
struct Slab {
    start: *mut u8,
    count: usize,
    free: Vec<u8>,
    /// By domain.
    memory: Vec<(u32, Memory)>,
    /// The peer has been told what it is called on both links.
    announced: bool,
}

impl Slab {
    /// Its registration in a domain, made if there is none.
    fn on(&mut self, domain: &Domain, element: usize, remote: bool) -> Res<&Memory> {
        let at = match self.memory.iter().position(|(n, _)| *n == domain.serial) {
            Some(at) => at,
            None => {
                let m = Memory::register(domain, self.start, self.count * element, remote)?;
                self.memory.push((domain.serial, m));
                self.memory.len() - 1
            }
        };
        Ok(&self.memory[at].1)
    }
}

/// Elements of one size.
pub struct Pool {
    element: usize,
    /// The peer may write.
    remote: bool,
    slabs: Vec<Slab>,
}

/// An element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Element {
    slab: usize,
    place: u8,
    /// Its first byte.
    pub start: *mut u8,
}

impl Element {
    /// Memory that a forked child has from its parent: of none of its own pools.
    pub fn inherited(start: *mut u8) -> Element {
        Element { slab: usize::MAX, place: 0, start }
    }

    /// Whether it is that.
    pub fn is_inherited(&self) -> bool {
        self.slab == usize::MAX
    }
}

/// How an element is named to a network card and to the peer.
#[derive(Clone, Copy)]
pub struct Keys {
    /// For this end.
    pub lkey: u32,
    /// For the peer.
    pub rkey: Rkey,
    /// Start of the registered memory.
    pub base: u64,
    /// The element's place in it.
    pub index: RmbeIndex,
}

impl Pool {
    /// An empty pool.
    pub const fn new(element: usize, remote: bool) -> Pool {
        Pool { element, remote, slabs: Vec::new() }
    }

    /// Bytes of an element.
    pub fn element(&self) -> usize {
        self.element
    }

    /// Takes an element; a new slab is mapped where none is free.
    pub fn take(&mut self) -> Res<Element> {
        if let Some(slab) = self.slabs.iter().position(|s| !s.free.is_empty()) {
            return self.take_from(slab);
        }
        let most = if self.remote { MOST } else { MOST_OWN };
        let wanted = self.slabs.last().map_or(FIRST, |s| (s.count * 2).min(most));
        let room = config::max_memory().saturating_sub(process::memory());
        // Without a ring that the peer writes into a connection stays on TCP; the others it needs to say so.
        let least = usize::from(!self.remote);
        let count = fitting(wanted, self.element, room).max(least);
        if count == 0 {
            return Err(Errno(libc::ENOBUFS));
        }
        let len = count * self.element;
        let start = device::map(len)?;
        process::note_memory(len as i64);
        let free = (0..count as u8).rev().collect();
        self.slabs.push(Slab { start, count, free, memory: Vec::new(), announced: false });
        self.take_from(self.slabs.len() - 1)
    }

    fn take_from(&mut self, slab: usize) -> Res<Element> {
        let s = &mut self.slabs[slab];
        let place = s.free.pop().ok_or(Errno(libc::ENOMEM))?;
        // SAFETY: below the slab's count.
        let start = unsafe { s.start.add(usize::from(place) * self.element) };
        Ok(Element { slab, place, start })
    }

    /// Gives an element back: nobody reads or writes it any more. What is inherited stays mapped, and is not used again.
    pub fn give_back(&mut self, e: Element) {
        if let Some(s) = self.slabs.get_mut(e.slab) {
            s.free.push(e.place);
        }
    }

    /// Names of an element in a domain; registers its slab there when it is the first.
    pub fn keys(&mut self, e: Element, domain: &Domain) -> Res<Keys> {
        let (remote, element) = (self.remote, self.element);
        let s = self.slabs.get_mut(e.slab).ok_or(Errno(libc::EINVAL))?;
        let m = s.on(domain, element, remote)?;
        let (lkey, rkey) = (m.lkey(), Rkey(m.rkey()));
        let index = RmbeIndex::new(e.place + 1).map_err(|_| Errno(libc::EINVAL))?;
        Ok(Keys { lkey, rkey, base: s.start as u64, index })
    }

    /// What memories are called on two links of which the peer has not been told yet, at most so many. It is told now.
    pub fn unannounced(&mut self, first: &Domain, second: &Domain, most: usize) -> Res<Vec<[OwnKey; 2]>> {
        let (remote, element) = (self.remote, self.element);
        let mut fresh = Vec::new();
        for s in self.slabs.iter_mut().filter(|s| !s.announced).take(most) {
            let address = s.start as u64;
            let mut name = |domain: &Domain| {
                let rkey = Rkey(s.on(domain, element, remote)?.rkey());
                Ok(OwnKey { rkey, address })
            };
            fresh.push([name(first)?, name(second)?]);
            s.announced = true;
        }
        Ok(fresh)
    }

    /// A domain is about to be closed: nothing is registered there any more, and what its link calls things is to be
    /// announced again when there is another.
    pub fn forget(&mut self, domain: &Domain) {
        for s in &mut self.slabs {
            while let Some(at) = s.memory.iter().position(|(n, _)| *n == domain.serial) {
                s.memory.swap_remove(at).1.deregister();
            }
            s.announced = false;
        }
    }

    /// Ends the pool: withdraws and unmaps everything.
    pub fn destroy(self) {
        for s in self.slabs {
            s.memory.into_iter().for_each(|(_, m)| m.deregister());
            device::unmap(s.start, s.count * self.element);
            process::note_memory(-((s.count * self.element) as i64));
        }
    }
}

/// How many elements of those wanted there is room for below `max_memory`.
fn fitting(wanted: usize, element: usize, room: u64) -> usize {
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    room.checked_div(element).unwrap_or(0).min(wanted)
}

/// Header pages.
pub struct Headers {
    free: Vec<*mut RegionHeader>,
}

/// Headers that are mapped at once.
const HEADERS: usize = 16;

impl Headers {
    /// None yet.
    #[allow(clippy::new_without_default, reason = "Default is not const")]
    pub const fn new() -> Headers {
        Headers { free: Vec::new() }
    }

    /// A header, all zero.
    pub fn take(&mut self) -> Res<*mut RegionHeader> {
        if self.free.is_empty() {
            let p = device::map(HEADERS * HEADER)?;
            process::note_memory((HEADERS * HEADER) as i64);
            // SAFETY: inside the mapping.
            self.free.extend((0..HEADERS).map(|i| unsafe { p.add(i * HEADER) }.cast()));
        }
        let p = self.free.pop().ok_or(Errno(libc::ENOMEM))?;
        // SAFETY: nobody else uses it; zero bytes are valid for atomics.
        unsafe { std::ptr::write_bytes(p.cast::<u8>(), 0, HEADER) };
        Ok(p)
    }

    /// Gives a header back: no thread looks at it any more.
    pub fn give_back(&mut self, p: *mut RegionHeader) {
        self.free.push(p);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_apart_and_come_back() {
        let mut pool = Pool::new(4096, true);
        let taken: Vec<Element> = (0..FIRST + 2).map(|_| pool.take().unwrap()).collect();
        for (i, a) in taken.iter().enumerate() {
            for b in &taken[i + 1..] {
                assert!((a.start as usize).abs_diff(b.start as usize) >= 4096);
            }
        }
        assert_eq!(pool.slabs.len(), 2, "a second slab when the first is used up");
        pool.give_back(taken[1]);
        assert_eq!(pool.take().unwrap(), taken[1]);
    }

    #[test]
    fn a_slab_is_no_larger_than_the_limit_allows() {
        assert_eq!(fitting(8, 4096, u64::MAX), 8);
        assert_eq!(fitting(8, 4096, 5 * 4096 + 1), 5);
        assert_eq!(fitting(8, 4096, 4095), 0);
        assert_eq!(fitting(8, 0, 4096), 0);
    }

    #[test]
    fn a_header_comes_back_empty() {
        let mut headers = Headers::new();
        let p = headers.take().unwrap();
        // SAFETY: a live page of this test.
        unsafe { &(*p).dirs[0] }.head.store(7, std::sync::atomic::Ordering::Relaxed);
        headers.give_back(p);
        let again = headers.take().unwrap();
        assert_eq!(again, p);
        // SAFETY: as above.
        assert_eq!(unsafe { &(*again).dirs[0] }.head.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}
