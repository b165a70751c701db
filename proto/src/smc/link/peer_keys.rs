//! What the peer's memories are called on each link of the group.
//!
//! A connection writes with the key and address of the link it uses; when it moves to the other link it asks
//! here. Filled by CLC messages, Add Link and Confirm Rkey, emptied by Delete Rkey, owned by [`super::Group`].

use super::LINKS;
use crate::smc::id::Rkey;
use crate::smc::list::List;

/// Memories of a peer: Linux has one for each of at most 255 connections.
const MOST: usize = 255;

/// What a memory is called on a link. Add Link names the key on the old link without its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Name {
    pub rkey: Rkey,
    pub address: Option<u64>,
}

/// One memory: its name on each link, once it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Entry([Option<Name>; LINKS]);

/// The table.
#[derive(Debug, Default)]
pub(super) struct PeerKeys(List<Entry, MOST>);

impl PeerKeys {
    /// A memory has this name on a link, and that one on another. False: the table is full.
    pub fn learn(&mut self, on: usize, name: Name, other: Option<(usize, Name)>) -> bool {
        if on >= LINKS || other.is_some_and(|(link, _)| link >= LINKS || link == on) {
            return true;
        }
        // It may be known by one name, or by each of them as if they were two.
        let mut entry = Entry::default();
        let mut keep = |name: (usize, Name), found: Option<Entry>| {
            let known = found.and_then(|e| e.0[name.0]).and_then(|n| n.address);
            for (to, from) in entry.0.iter_mut().zip(found.unwrap_or_default().0) {
                *to = to.or(from);
            }
            entry.0[name.0] = Some(Name { address: name.1.address.or(known), ..name.1 });
        };
        keep((on, name), self.take(on, name.rkey));
        if let Some((link, name)) = other {
            keep((link, name), self.take(link, name.rkey));
        }
        self.0.push(entry)
    }

    /// Key and address on `other` of the memory with this key on a link.
    pub fn find(&self, on: usize, rkey: Rkey, other: usize) -> Option<(Rkey, u64)> {
        let name = (*self.0[self.place(on, rkey)?].0.get(other)?)?;
        Some((name.rkey, name.address?))
    }

    /// The memory with this key on a link has gone; its key on `other`.
    pub fn forget(&mut self, on: usize, rkey: Rkey, other: usize) -> Option<Rkey> {
        let entry = self.take(on, rkey)?;
        Some((*entry.0.get(other)?)?.rkey)
    }

    /// A link is another one from now on: what was known of it is not.
    pub fn forget_link(&mut self, link: usize) {
        for entry in self.0.iter_mut() {
            if let Some(name) = entry.0.get_mut(link) {
                *name = None;
            }
        }
        self.0.retain(|e| e.0.iter().any(Option::is_some));
    }

    fn take(&mut self, on: usize, rkey: Rkey) -> Option<Entry> {
        let place = self.place(on, rkey)?;
        self.0.swap_remove(place)
    }

    fn place(&self, on: usize, rkey: Rkey) -> Option<usize> {
        self.0.iter().position(|e| e.0.get(on).copied().flatten().is_some_and(|n| n.rkey == rkey))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(rkey: u32, address: u64) -> Name {
        Name { rkey: Rkey(rkey), address: Some(address) }
    }

    #[test]
    fn a_memory_is_found_from_either_link_until_it_is_withdrawn() {
        let mut keys = PeerKeys::default();
        assert!(keys.learn(0, name(1, 100), None));
        assert_eq!(keys.find(0, Rkey(1), 1), None, "not known there yet");
        let nameless = Name { rkey: Rkey(1), address: None };
        assert!(keys.learn(0, nameless, Some((1, name(9, 900)))), "as Add Link says it");
        assert!(keys.learn(0, name(2, 200), Some((1, name(1, 800)))), "keys of two devices may be equal");
        assert_eq!(keys.find(0, Rkey(1), 1), Some((Rkey(9), 900)));
        assert_eq!(keys.find(1, Rkey(9), 0), Some((Rkey(1), 100)), "the address is not forgotten");
        assert_eq!(keys.find(1, Rkey(1), 0), Some((Rkey(2), 200)));
        assert_eq!(keys.find(0, Rkey(9), 1), None);
        assert_eq!(keys.forget(0, Rkey(1), 1), Some(Rkey(9)));
        assert_eq!(keys.find(1, Rkey(9), 0), None);
        assert_eq!(keys.find(1, Rkey(1), 0), Some((Rkey(2), 200)));
    }

    #[test]
    fn a_peer_cannot_fill_more_than_the_table() {
        let mut keys = PeerKeys::default();
        let taken = (0..400).filter(|n| keys.learn(0, name(*n, 0), Some((1, name(*n, 0))))).count();
        assert_eq!(taken, MOST);
        assert!(keys.learn(0, name(3, 5), Some((1, name(4, 5)))), "one that is known changes");
        assert!(keys.learn(7, name(999, 0), None), "no such link: nothing to keep");
    }

    #[test]
    fn a_link_that_is_replaced_takes_its_names_along() {
        let mut keys = PeerKeys::default();
        assert!(keys.learn(0, name(1, 100), Some((1, name(9, 900)))));
        assert!(keys.learn(1, name(7, 700), None), "known there alone");
        keys.forget_link(1);
        assert_eq!((keys.find(0, Rkey(1), 1), keys.0.len()), (None, 1));
        assert!(keys.learn(0, Name { rkey: Rkey(1), address: None }, Some((1, name(5, 500)))));
        assert_eq!(keys.find(1, Rkey(5), 0), Some((Rkey(1), 100)));
    }

    #[test]
    fn names_that_came_one_by_one_are_one_memory() {
        let mut keys = PeerKeys::default();
        assert!(keys.learn(1, name(9, 900), None), "a connection on the second link");
        assert!(keys.learn(0, name(1, 100), None), "and one on the first");
        assert!(keys.learn(0, name(1, 100), Some((1, name(9, 900)))), "then Confirm Rkey");
        assert_eq!(keys.find(0, Rkey(1), 1), Some((Rkey(9), 900)));
        assert_eq!(keys.find(1, Rkey(9), 0), Some((Rkey(1), 100)));
        assert_eq!(keys.0.len(), 1);
    }
}
