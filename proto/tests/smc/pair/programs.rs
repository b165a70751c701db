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
        if self.ends[end].slots[place].back.is_wanted() {
            return self.write_home(end, place, bytes);
        }
        let slot = &mut self.ends[end].slots[place];
        let mut done = 0;
        for segment in slot.conn.write(bytes.len() as u32, urgent).expect("writable").iter() {
            let part = bytes[done..done + segment.len as usize].to_vec();
            done += part.len();
            let (address, _) = slot.conn.remote(*segment).unwrap();
            if self.link_up[slot.link] {
                self.wire[end][slot.link].push_back(Work::Write(address, part));
            }
        }
        slot.dirty = true;
        slot.out.extend_from_slice(&bytes[..done]);
        done
    }

    /// A connection goes on over another link: what the peer is not known to have read is written again.
    pub(super) fn move_slot(&mut self, end: usize, place: usize, to: usize) {
        let Some((_, group)) = &self.ends[end].group else { return };
        let slot = &mut self.ends[end].slots[place];
        let Some(rkey) = slot.conn.peer_rkey() else { return };
        let (rkey, address) = group.peer_key(slot.link, rkey, to).expect("the peer has named its memory");
        slot.link = to;
        slot.conn.move_to_link(rkey, address, std::mem::take(&mut slot.uncompleted));
        if slot.back.is_wanted() {
            return; // it says no more by any link, and is to know what the peer may have
        }
        let again = slot.out.split_off(slot.conn.sent_bytes().0 as usize);
        if !again.is_empty() {
            let done = self.write(end, place, &again);
            assert_eq!(done, again.len(), "what the peer has not read fits into its ring");
        }
        self.ends[end].slots[place].dirty = true;
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
        if out.is_empty() {
            out = slot.back.read(max);
        }
        out
    }

    pub fn shutdown(&mut self, end: usize, place: usize) {
        let slot = self.slot(end, place);
        slot.conn.shutdown();
        (slot.dirty, slot.shut) = (true, true);
        self.end_home(end, place);
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
