//! A short list of fixed capacity, kept in place.
//!
//! The messages of SMC-R carry a handful of GIDs, keys, prefixes or bytes; this type holds them
//! without an allocator. Used by every parser and emitter of this folder.

use core::fmt;
use core::ops::{Deref, DerefMut};

/// Up to `N` values in order; reads as a slice.
#[derive(Clone, Copy)]
pub struct List<T: Copy + Default, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    /// An empty list.
    pub fn new() -> Self {
        List { items: [T::default(); N], len: 0 }
    }

    /// The list of the first `N` values of a slice.
    pub fn of(values: &[T]) -> Self {
        let mut list = Self::new();
        list.extend(values);
        list
    }

    /// Appends a value; false if there was no room.
    pub fn push(&mut self, value: T) -> bool {
        match self.items.get_mut(self.len) {
            Some(place) => {
                *place = value;
                self.len += 1;
                true
            }
            None => false,
        }
    }

    /// Appends values while there is room; false if some did not fit.
    pub fn extend(&mut self, values: &[T]) -> bool {
        values.iter().all(|v| self.push(*v))
    }

    /// Whether nothing more fits.
    pub fn is_full(&self) -> bool {
        self.len == N
    }

    /// Takes the first value off; the others move up.
    pub fn pop_front(&mut self) -> Option<T> {
        let first = *self.first()?;
        self.items.copy_within(1..self.len, 0);
        self.len -= 1;
        Some(first)
    }

    /// Takes the value at a place out; the last one takes its place.
    pub fn swap_remove(&mut self, place: usize) -> Option<T> {
        let value = *self.get(place)?;
        self.len -= 1;
        self.items[place] = self.items[self.len];
        Some(value)
    }

    /// Keeps the values that this says yes to, in order.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let mut kept = 0;
        for at in 0..self.len {
            if keep(&self.items[at]) {
                self.items[kept] = self.items[at];
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Empties the list.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy + Default, const N: usize> Deref for List<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..self.len]
    }
}

impl<T: Copy + Default, const N: usize> DerefMut for List<T, N> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }
}

impl<T: Copy + Default + PartialEq, const N: usize> PartialEq for List<T, N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Copy + Default + Eq, const N: usize> Eq for List<T, N> {}

impl<T: Copy + Default + fmt::Debug, const N: usize> fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_capacity() {
        let mut list: List<u8, 3> = List::of(&[1, 2]);
        assert!(list.push(3) && !list.push(4) && list.is_full());
        assert_eq!(list.pop_front(), Some(1));
        assert_eq!(*list, [2, 3]);
        assert!(!list.extend(&[5, 6]), "6 does not fit");
        assert_eq!(*list, [2, 3, 5]);
        assert_eq!((list.swap_remove(0), list.swap_remove(2)), (Some(2), None));
        assert_eq!(*list, [5, 3]);
        list.retain(|n| *n != 5);
        assert_eq!(*list, [3]);
        list.clear();
        assert_eq!(list.pop_front(), None);
    }

    #[test]
    fn what_was_popped_does_not_count_for_equality() {
        let mut a: List<u8, 4> = List::of(&[9, 1]);
        a.pop_front();
        assert_eq!(a, List::of(&[1]));
    }
}
