//! The annex of a direction: room behind the region for payload that the consumer has taken off TCP and that has to go
//! through TCP again (`engine::take_up`). It is in the region's file, not in its mapping, and costs nothing until it is used.

use super::region::{self, Dir, FILE_LEN, RegionHeader};
use super::wide;
use crate::sys::{Res, mem};

/// Bytes of an annex: more than the buffers of a TCP connection hold by default (tcp_wmem and tcp_rmem: 4 and 6 MiB, 4 and 32 since
/// Linux 6.16), and a ring, and what a sender puts behind them before it hears that it is called.
pub const LEN: usize = 64 << 20;

/// An annex, mapped for a moment.
pub struct Annex {
    file: *mut u8,
    at: usize,
}

impl Annex {
    /// Maps the annex of a direction of a region that stays mapped meanwhile.
    pub fn map(region: &RegionHeader, dir: &Dir) -> Res<Annex> {
        let file = mem::map_again(region::start_of(region), FILE_LEN)?;
        Ok(Annex { file, at: region::LEN + wide::BOTH + region::number_of(region, dir) * LEN })
    }

    /// Its bytes. Only the consumer writes, until it has asked for their return; then only the producer reads. What a hostile
    /// end does to them meanwhile changes what is sent, and nothing else.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a mapping of FILE_LEN bytes of our own, whose size is sealed; plain bytes.
        unsafe { std::slice::from_raw_parts_mut(self.file.add(self.at), LEN) }
    }

    /// They are not needed any more: gives the memory back.
    pub fn clear(&mut self) {
        let _ = mem::give_back(self.bytes().as_mut_ptr(), LEN);
    }
}

impl Drop for Annex {
    fn drop(&mut self) {
        mem::unmap(self.file, FILE_LEN);
    }
}
