//! Data words of registrations that were the library's own, until every thread that may have an event of one has looked.
//!
//! Of a member in memory the kernel tells the doorbells and the end of the connection, under the program's data. A thread that
//! has such an event, and has not taken the lock of the set yet, finds a member that is gone, that is on TCP again, or another one with the same
//! data: the word tells a pointer that the program may have freed. To the program the event would be one that it has not asked for; of a
//! member that tells once, a second one. So who ends such a registration says so here, under the lock, and `ready::keep` lets those events go
//! that a thread may have got before. Part of [`super::members::Inner`].

/// So many at least are known. More would have to go while one thread stands between the kernel's answer and the lock.
const ROOM: usize = 64;

/// All zero at its start.
pub struct Buried {
    /// Ever; `Set::buried` is the copy that a thread reads before it asks the kernel.
    made: u64,
    words: [u64; ROOM],
}

impl Buried {
    pub const fn none() -> Buried {
        Buried { made: 0, words: [0; ROOM] }
    }

    /// Events of this word that were got before are nobody's. Returns how many there are now.
    pub fn add(&mut self, word: u64) -> u64 {
        self.words[self.made as usize % ROOM] = word;
        self.made += 1;
        self.made
    }

    /// Whether an event with this word, asked for when there were `since`, may be of a registration that ended since.
    pub fn holds(&self, word: u64, since: u64) -> bool {
        let first = since.max(self.made.saturating_sub(ROOM as u64));
        (first..self.made).any(|n| self.words[n as usize % ROOM] == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_before_the_question_was_asked_is_forgotten() {
        let mut buried = Buried::none();
        assert!(!buried.holds(0, 0));
        let since = buried.add(7);
        assert!(buried.holds(7, 0) && !buried.holds(7, since) && !buried.holds(8, 0));
        for n in 0..ROOM as u64 {
            buried.add(100 + n);
        }
        assert!(!buried.holds(7, 0), "too long ago");
        assert!((0..ROOM as u64).all(|n| buried.holds(100 + n, since)));
        assert!(!buried.holds(100, since + 1) && buried.holds(101, since + 1));
    }
}
