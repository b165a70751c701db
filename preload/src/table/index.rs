//! A small hash index: 64-bit key -> 32-bit values, several values for a key allowed.
//!
//! Open addressing in private mappings of our own; grows by doubling. Used by `set` to find members
//! by descriptor and by the program's data word.

use crate::sys::mem;

#[derive(Clone, Copy)]
struct Slot {
    key: u64,
    /// Value + 1; 0 = empty.
    value: u32,
}

/// How far [`Index::next`] has come.
#[derive(Default)]
pub struct Walk(usize);

/// The index. All zero is an empty one.
pub struct Index {
    slots: *mut Slot,
    cap: usize,
    len: usize,
}

impl Index {
    /// An empty index.
    #[allow(clippy::new_without_default, reason = "Default is not const")]
    pub const fn new() -> Index {
        Index { slots: std::ptr::null_mut(), cap: 0, len: 0 }
    }

    fn table(&mut self) -> &mut [Slot] {
        if self.cap == 0 {
            return &mut [];
        }
        // SAFETY: a private mapping of `cap` slots; zero bytes are valid; exclusive through &mut.
        unsafe { std::slice::from_raw_parts_mut(self.slots, self.cap) }
    }

    fn view(&self) -> &[Slot] {
        if self.cap == 0 {
            return &[];
        }
        // SAFETY: as in `table`.
        unsafe { std::slice::from_raw_parts(self.slots, self.cap) }
    }

    fn home(key: u64, cap: usize) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (cap - 1)
    }

    /// Adds a pair; false if there is no memory.
    pub fn add(&mut self, key: u64, value: u32) -> bool {
        if self.len * 2 >= self.cap && !self.grow() {
            return false;
        }
        let cap = self.cap;
        let t = self.table();
        let mut i = Self::home(key, cap);
        while t[i].value != 0 {
            i = (i + 1) & (cap - 1);
        }
        t[i] = Slot { key, value: value + 1 };
        self.len += 1;
        true
    }

    fn grow(&mut self) -> bool {
        let cap = (self.cap * 2).max(64);
        let Ok(p) = mem::map_private(cap * size_of::<Slot>()) else { return false };
        let (old, old_cap) = (self.slots, self.cap);
        let pairs: Index = Index { slots: old, cap: old_cap, len: 0 };
        *self = Index { slots: p.cast(), cap, len: 0 };
        for s in pairs.view().iter().filter(|s| s.value != 0) {
            self.add(s.key, s.value - 1);
        }
        if old_cap > 0 {
            mem::unmap(old.cast(), old_cap * size_of::<Slot>());
        }
        true
    }

    /// Removes a pair.
    pub fn remove(&mut self, key: u64, value: u32) {
        let cap = self.cap;
        let t = self.table();
        if cap == 0 {
            return;
        }
        let mut i = Self::home(key, cap);
        while t[i].value != 0 && !(t[i].key == key && t[i].value == value + 1) {
            i = (i + 1) & (cap - 1);
        }
        if t[i].value == 0 {
            return;
        }
        // Close the gap, so that every key is found from its home on.
        let mut hole = i;
        let mut j = (i + 1) & (cap - 1);
        while t[j].value != 0 {
            let home = Self::home(t[j].key, cap);
            if (j.wrapping_sub(home) & (cap - 1)) >= (j.wrapping_sub(hole) & (cap - 1)) {
                t[hole] = t[j];
                hole = j;
            }
            j = (j + 1) & (cap - 1);
        }
        t[hole].value = 0;
        self.len -= 1;
    }

    /// The values of a key.
    pub fn all(&self, key: u64) -> impl Iterator<Item = u32> + '_ {
        let mut walk = Walk::default();
        std::iter::from_fn(move || self.next(key, &mut walk))
    }

    /// The next value of a key, for who changes what the values stand for meanwhile; the index stays as it is.
    pub fn next(&self, key: u64, walk: &mut Walk) -> Option<u32> {
        let t = self.view();
        loop {
            let s = t.get(Self::home(key, self.cap.max(1)).wrapping_add(walk.0) & self.cap.wrapping_sub(1))?;
            if s.value == 0 {
                return None;
            }
            walk.0 += 1;
            if s.key == key {
                return Some(s.value - 1);
            }
        }
    }

    /// One value of a key.
    pub fn one(&self, key: u64) -> Option<u32> {
        self.all(key).next()
    }

    /// Forgets everything and gives the memory back.
    pub fn clear(&mut self) {
        if self.cap > 0 {
            mem::unmap(self.slots.cast(), self.cap * size_of::<Slot>());
        }
        *self = Index::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_added_and_not_what_was_removed() {
        let mut ix = Index::new();
        let mut x = 7u64;
        let mut model: Vec<(u64, u32)> = Vec::new();
        for n in 0..5000u32 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if x >> 63 == 0 || model.is_empty() {
                let key = (x >> 20) % 97;
                assert!(ix.add(key, n));
                model.push((key, n));
            } else {
                let (key, v) = model.swap_remove((x >> 8) as usize % model.len());
                ix.remove(key, v);
            }
            if n % 100 == 0 {
                for key in 0..97 {
                    let mut a: Vec<u32> = ix.all(key).collect();
                    let mut b: Vec<u32> = model.iter().filter(|p| p.0 == key).map(|p| p.1).collect();
                    a.sort_unstable();
                    b.sort_unstable();
                    assert_eq!(a, b);
                }
            }
        }
    }
}
