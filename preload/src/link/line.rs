//! Who waits for a send slot of a link, in the order in which they came.
//!
//! Where all slots are taken, one that comes free belongs to who has waited longest. By their numbers, those that come last would get
//! none for as long as others stream: the first has the peer's answer, and more to send, before the next slot is free.

use smcr_proto::smc::link::MAX_CONNECTIONS;
use std::collections::VecDeque;

/// The line of one link.
pub struct Line {
    waiting: VecDeque<u32>,
    /// Who has left the line to send, and has not asked yet.
    turn: Option<u32>,
}

impl Line {
    /// Nobody waits. There is room for all connections of a group from here on.
    pub fn new() -> Line {
        Line { waiting: VecDeque::with_capacity(MAX_CONNECTIONS as usize + 1), turn: None }
    }

    /// Whether a connection may send a message, where so many slots are free. Else it waits in the line.
    pub fn admits(&mut self, index: u32, free: u32) -> bool {
        if self.turn == Some(index) {
            self.turn = None;
            if free > 0 {
                return true;
            }
            self.waiting.push_front(index);
            return false;
        }
        let waits = self.waiting.contains(&index);
        if !waits && free as usize > self.waiting.len() {
            return true;
        }
        if !waits {
            self.waiting.push_back(index);
        }
        false
    }

    /// Who comes next, where so many slots are free: it leaves the line, and may send one message.
    pub fn next(&mut self, free: u32) -> Option<u32> {
        self.turn = if free > 0 { self.waiting.pop_front() } else { None };
        self.turn
    }

    /// A connection has gone.
    pub fn leave(&mut self, index: u32) {
        self.waiting.retain(|waits| *waits != index);
        self.turn = self.turn.filter(|turn| *turn != index);
    }

    /// All have.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.turn = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 16;

    #[test]
    fn those_with_high_numbers_send_as_much_as_the_others() {
        const SENDERS: u32 = 40;
        let (mut line, mut free) = (Line::new(), SLOTS);
        let (mut sent, mut on_its_way) = ([0u32; SENDERS as usize], VecDeque::new());
        let mut send = |line: &mut Line, free: &mut u32, on_its_way: &mut VecDeque<u32>, index: u32| {
            if line.admits(index, *free) {
                *free -= 1;
                sent[index as usize] += 1;
                on_its_way.push_back(index);
            }
        };
        for index in 0..SENDERS {
            send(&mut line, &mut free, &mut on_its_way, index);
        }
        for _ in 0..SENDERS * 100 {
            let done = on_its_way.pop_front().unwrap();
            free += 1;
            // Its peer has answered before: it is the first that wants the slot.
            send(&mut line, &mut free, &mut on_its_way, done);
            while let Some(next) = line.next(free) {
                send(&mut line, &mut free, &mut on_its_way, next);
            }
        }
        assert!(sent.iter().all(|n| (100..=102).contains(n)), "{sent:?}");
    }

    #[test]
    fn whom_nobody_waits_before_goes_at_once() {
        let mut line = Line::new();
        assert!(line.admits(7, 1));
        assert!(!line.admits(7, 0) && !line.admits(3, 0));
        assert!(!line.admits(9, 2), "two wait for two slots");
        assert!(line.admits(8, 4));
        assert_eq!(line.next(1), Some(7));
        assert!(line.admits(7, 1) && !line.admits(7, 1), "one message in a turn");
        assert_eq!((line.next(0), line.next(1)), (None, Some(3)));
    }

    #[test]
    fn who_has_nothing_to_send_or_has_gone_keeps_nobody_back() {
        let mut line = Line::new();
        assert!((0..4).all(|index| !line.admits(index, 0)));
        line.leave(1);
        assert_eq!(line.next(1), Some(0));
        assert_eq!(line.next(1), Some(2));
        assert_eq!(line.next(1), Some(3));
        line.leave(3);
        assert!(line.admits(3, 1));
        assert_eq!(line.next(1), None);
    }
}
