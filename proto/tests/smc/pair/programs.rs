//! What the programs at the two ends do.

use super::{Pair, Work};

impl Pair {
    /// Writes as much as fits; how much it was.
    pub fn write(&mut self, end: usize, place: usize, bytes: &[u8]) -> usize {
        self.post(end, place, bytes, false)
    }

    pub fn write_urgent(&mut self, end: usize, place: usize, bytes: &[u8]) -> usize {
        self.post(end, place, bytes, true)
    }

    fn post(&mut self, end: usize, place: usize, bytes: &[u8], urgent: bool) -> usize {
        let slot = &mut self.ends[end].slots[place];
        let mut done = 0;
        for segment in slot
            .conn
            .write(bytes.len() as u32, urgent)
            .expect("writable")
            .iter()
        {
            let part = bytes[done..done + segment.len as usize].to_vec();
            done += part.len();
            let (address, _) = slot.conn.remote(*segment).unwrap();
            if self.link_up {
                self.wire[end].push_back(Work::Write(address, part));
            }
        }
        slot.dirty = true;
        done
    }

    /// Reads what is there, at most `max` bytes.
    pub fn read(&mut self, end: usize, place: usize, max: usize) -> Vec<u8> {
        let slot = self.slot(end, place);
        let mut out = Vec::new();
        for segment in slot.conn.segments(max as u32).iter() {
            out.extend(&slot.ring[segment.offset as usize..][..segment.len as usize]);
        }
        slot.conn.consume(out.len() as u32);
        slot.dirty = true;
        out
    }

    pub fn shutdown(&mut self, end: usize, place: usize) {
        let slot = self.slot(end, place);
        slot.conn.shutdown();
        slot.dirty = true;
    }

    pub fn close(&mut self, end: usize, place: usize) {
        let slot = self.slot(end, place);
        slot.conn.close();
        slot.dirty = true;
    }

    /// Gives up the ring of a finished connection.
    pub fn leave(&mut self, end: usize, place: usize) {
        assert!(self.slot(end, place).conn.is_finished());
        let now = self.now;
        if let Some((_, group)) = &mut self.ends[end].group {
            group.connection_closed(now);
        }
    }
}
