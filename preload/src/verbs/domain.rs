//! A protection domain with its shared receive queue: what one link reaches on a device.
//!
//! Each link has one of its own. A key is good in its domain alone, so a peer that guesses the key of a ring of another
//! group gets nothing from the network card; and one that floods its link takes no other's receives. Made and closed by
//! `link::state`.

use super::abi::{Functions, Pd, RecvWr, Sge, Srq, SrqInitAttr};
use super::device::{Device, MESSAGE, REST};
use super::fit;
use super::qp::{Memory, Room, SEND_WR};
use crate::family::process;
use crate::fault::{self, Step as Fault};
use crate::sys::{Errno, Res, device as memory};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Receive buffers. Soft RoCE (6.12) breaks a link that has none left in the middle of a write that announces itself.
const RECEIVES: usize = 1024;
/// Messages that there is room for where they are not inline.
pub const ROOMS: usize = 32;
/// Completions that there may be of it at a time: receives, and all requests of a queue pair that fails.
const COMPLETIONS: u32 = RECEIVES as u32 + SEND_WR;
/// Bytes of both, and where the rest of long messages goes, all to the same place: nobody reads it.
const LEN: usize = RECEIVES * MESSAGE + ROOMS * Room::LEN + REST;

/// A domain.
pub struct Domain {
    pub(super) verbs: &'static Functions,
    pub(super) pd: *mut Pd,
    pub(super) srq: *mut Srq,
    /// Place of the completion queue that it uses.
    pub(super) queue: usize,
    /// Receive buffers, then room for messages, then the rest of long ones.
    buffers: *mut u8,
    /// Pieces of memory of a receive: two, unless the device knows one only.
    pieces: u32,
    memory: Memory,
    /// How many receives there are, and those that the device has not taken.
    receives: usize,
    owed: RefCell<Vec<u64>>,
    /// Tells it from all others of the process.
    pub serial: u32,
}

// SAFETY: libibverbs allows the calls from any thread; the owner's lock serialises them.
unsafe impl Send for Domain {}

static SERIAL: AtomicU32 = AtomicU32::new(0);

impl Domain {
    /// A domain on this device.
    pub fn open(device: &mut Device) -> Res<Domain> {
        let made = Domain::make(device);
        fit::note_domain(made.is_ok());
        made
    }

    fn make(device: &mut Device) -> Res<Domain> {
        let verbs = device.verbs;
        let queue = device.reserve(COMPLETIONS)?;
        let receives = RECEIVES.min(device.max_receives as usize);
        let mut init = SrqInitAttr { srq_context: std::ptr::null_mut(), max_wr: 0, max_sge: 0, srq_limit: 0 };
        let mut pieces = 2;
        // SAFETY: an open device; each object is checked before it is used for the next.
        let (pd, srq) = unsafe {
            let pd = (verbs.ibv_alloc_pd)(device.context);
            let mut srq: *mut Srq = std::ptr::null_mut();
            while !pd.is_null() && srq.is_null() && pieces > 0 {
                (init.max_wr, init.max_sge) = (receives as u32, pieces);
                srq = (verbs.ibv_create_srq)(pd, &mut init);
                pieces -= u32::from(srq.is_null());
            }
            (pd, srq)
        };
        let serial = SERIAL.fetch_add(1, Relaxed);
        let mut domain = Domain {
            verbs,
            pd,
            srq,
            queue,
            buffers: std::ptr::null_mut(),
            pieces,
            memory: Memory::none(),
            receives,
            owed: RefCell::default(),
            serial,
        };
        let filled = if srq.is_null() || receives == 0 { Err(Errno(libc::ENOMEM)) } else { domain.fill() };
        match filled {
            Ok(()) => Ok(domain),
            Err(e) => {
                domain.close(device);
                Err(e)
            }
        }
    }

    fn fill(&mut self) -> Res<()> {
        self.buffers = memory::map(LEN)?;
        process::note_memory(LEN as i64);
        self.memory = Memory::register(self, self.buffers, LEN, false)?;
        (0..self.receives).try_for_each(|id| self.post_receive(id as u64))
    }

    /// Room for messages: [`ROOMS`] of them.
    pub fn room(&self) -> Room {
        // SAFETY: behind the receives, inside the mapping.
        Room { at: unsafe { self.buffers.add(RECEIVES * MESSAGE) }, lkey: self.memory.lkey() }
    }

    /// Posts the buffer of a completed receive again into which nothing came.
    pub fn give_back(&self, id: u64) {
        if (id as usize) < RECEIVES {
            self.post_again(id);
        }
    }

    /// Posts it, and those that could not be posted before.
    fn post_again(&self, id: u64) {
        let mut owed = self.owed.borrow_mut();
        if self.post_receive(id).is_err() {
            return owed.push(id);
        }
        while owed.last().is_some_and(|id| self.post_receive(*id).is_ok()) {
            owed.pop();
        }
    }

    /// Whether nothing can arrive any more: the device has taken none of them.
    pub fn is_starved(&self) -> bool {
        self.owed.borrow().len() >= self.receives
    }

    /// Copies the message of a completed receive out and posts the buffer again. None: no such buffer.
    pub fn take_message(&self, id: u64, len: u32, out: &mut [u8; MESSAGE]) -> Option<usize> {
        let n = (len as usize).min(MESSAGE);
        let at = (id as usize) < RECEIVES;
        if at {
            // SAFETY: a buffer of the array, which the device does not write before it is posted.
            unsafe {
                let from = self.buffers.add(id as usize * MESSAGE);
                std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), n);
            }
            self.post_again(id);
        }
        at.then_some(n)
    }

    fn post_receive(&self, id: u64) -> Res<()> {
        if fault::fails(Fault::ReceivePosted) {
            return Err(Errno(libc::ENOMEM));
        }
        let piece = |at: usize, len: usize| Sge { addr: (self.buffers as usize + at) as u64, length: len as u32, lkey: self.memory.lkey() };
        let mut sges = [piece(id as usize * MESSAGE, MESSAGE), piece(LEN - REST, REST)];
        let num_sge = self.pieces as i32;
        let mut wr = RecvWr { wr_id: id, next: std::ptr::null_mut(), sg_list: sges.as_mut_ptr(), num_sge };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue with its context's call; request and segments live through it.
        let r = unsafe {
            match (*(*self.srq).context).post_srq_recv {
                Some(post) => post(self.srq, &mut wr, &mut bad),
                None => libc::ENOSYS,
            }
        };
        if r == 0 { Ok(()) } else { Err(Errno(r)) }
    }

    /// Gives everything back: no queue pair of it is left, and no other memory.
    pub fn close(self, device: &mut Device) {
        device.give_room_back(self.queue, COMPLETIONS);
        self.memory.deregister();
        // SAFETY: made by `open`, not used after this; null where it failed.
        unsafe {
            if !self.srq.is_null() {
                (self.verbs.ibv_destroy_srq)(self.srq);
            }
            if !self.pd.is_null() {
                (self.verbs.ibv_dealloc_pd)(self.pd);
            }
        }
        if !self.buffers.is_null() {
            memory::unmap(self.buffers, LEN);
            process::note_memory(-(LEN as i64));
        }
    }
}
