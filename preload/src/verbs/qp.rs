//! One queue pair: made, brought to life, written to.
//!
//! RC, the parameters of Linux SMC-R (`net/smc/smc_ib.c`). 7 retries are "for ever" on soft RoCE, so the
//! owner watches the time itself. Owned by a link group of `link`.

use super::abi::{self, AhAttr, Functions, Mr, Qp, QpAttr, QpCap, QpInitAttr, SendWr, Sge};
use super::device::{Device, SENT};
use super::domain::Domain;
use crate::fault::{self, Step as Fault};
use crate::sys::{Errno, Res};
use smcr_proto::smc::id::{Gid, Mtu, Psn, Qpn};

/// Work requests on the send queue: slots for messages, each with its writes.
pub const SEND_WR: u32 = 96;
/// Most writes before one message.
pub const WRITES: usize = 4;
/// Bytes that are sent inline, if the device can.
const INLINE: u32 = 220;

/// A queue pair.
pub struct QueuePair {
    qp: *mut Qp,
    /// Bytes that may be sent inline.
    inline: u32,
    port: u8,
    index: u8,
}

// SAFETY: libibverbs allows the calls from any thread; the owner's lock serialises them.
unsafe impl Send for QueuePair {}

/// A piece of registered memory to be written to the peer.
#[derive(Clone, Copy, Default)]
pub struct Write {
    /// Where it lies here.
    pub from: u64,
    /// Bytes, not 0.
    pub len: u32,
    /// Key of the memory here.
    pub lkey: u32,
    /// Where it goes.
    pub to: u64,
    /// Key of the memory there.
    pub rkey: u32,
}

/// Where the peer is.
#[derive(Clone, Copy)]
pub struct Remote {
    /// Its GID.
    pub gid: Gid,
    /// Its queue pair.
    pub qpn: Qpn,
    /// First sequence number of its send queue.
    pub psn: Psn,
    /// The smaller of both ports' MTU.
    pub mtu: Mtu,
}

impl QueuePair {
    /// Makes a queue pair on a port (GID index `index`) and brings it to INIT.
    pub fn make(device: &Device, domain: &Domain, index: u8) -> Res<QueuePair> {
        if fault::fails(Fault::QueuePairMade) {
            return Err(Errno(libc::ENOMEM));
        }
        let verbs = device.verbs;
        let mut init = QpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: device.cq(domain.queue),
            recv_cq: device.cq(domain.queue),
            srq: domain.srq,
            cap: QpCap { max_send_wr: SEND_WR, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 1, max_inline_data: INLINE },
            qp_type: abi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: queues and protection domain outlive the queue pair; the struct is filled.
        let mut qp = unsafe { (verbs.ibv_create_qp)(domain.pd, &mut init) };
        if qp.is_null() {
            init.cap.max_inline_data = 0;
            // SAFETY: as above.
            qp = unsafe { (verbs.ibv_create_qp)(domain.pd, &mut init) };
        }
        if qp.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        let made = QueuePair { qp, inline: init.cap.max_inline_data, port: device.port, index };
        let attr = QpAttr {
            qp_state: abi::QPS_INIT,
            port_num: device.port,
            qp_access_flags: (abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE) as u32,
            ..QpAttr::default()
        };
        let mask = abi::MASK_STATE | abi::MASK_PKEY | abi::MASK_PORT | abi::MASK_ACCESS;
        if let Err(e) = made.modify(device, attr, mask) {
            made.destroy(device);
            return Err(e);
        }
        Ok(made)
    }

    /// Its number.
    pub fn number(&self) -> Qpn {
        // SAFETY: a live queue pair; the number does not change.
        Qpn::truncate(unsafe { (*self.qp).qp_num })
    }

    /// Whether a device means it by this address.
    pub fn is_at(&self, address: u64) -> bool {
        self.qp as u64 == address
    }

    /// To RTR: from now on the peer's messages arrive.
    pub fn receive(&self, device: &Device, remote: &Remote) -> Res<()> {
        let [high, low] = [0, 8].map(|at| u64::from_ne_bytes(remote.gid.0[at..at + 8].try_into().unwrap_or([0; 8])));
        let attr = QpAttr {
            qp_state: abi::QPS_RTR,
            path_mtu: u32::from(remote.mtu.code()),
            dest_qp_num: remote.qpn.value(),
            rq_psn: remote.psn.value(),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 5,
            ah_attr: AhAttr { dgid: [high, low], sgid_index: self.index, hop_limit: 64, is_global: 1, port_num: self.port, ..AhAttr::default() },
            ..QpAttr::default()
        };
        let mask =
            abi::MASK_STATE | abi::MASK_AV | abi::MASK_MTU | abi::MASK_DEST_QPN | abi::MASK_RQ_PSN | abi::MASK_MAX_DEST_RD | abi::MASK_RNR_TIMER;
        self.move_on(device, attr, mask)
    }

    /// To RTS: from now on it can send.
    pub fn send_from(&self, device: &Device, psn: Psn) -> Res<()> {
        let attr =
            QpAttr { qp_state: abi::QPS_RTS, sq_psn: psn.value(), timeout: 15, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1, ..QpAttr::default() };
        let mask = abi::MASK_STATE | abi::MASK_TIMEOUT | abi::MASK_RETRY | abi::MASK_RNR_RETRY | abi::MASK_SQ_PSN | abi::MASK_MAX_RD;
        self.move_on(device, attr, mask)
    }

    /// To ERR: nothing moves any more.
    pub fn fail(&self, device: &Device) {
        let attr = QpAttr { qp_state: abi::QPS_ERR, ..QpAttr::default() };
        let _ = self.modify(device, attr, abi::MASK_STATE);
    }

    /// As [`Self::modify`], while it comes to life.
    fn move_on(&self, device: &Device, attr: QpAttr, mask: i32) -> Res<()> {
        if fault::fails(Fault::QueuePairMoved) { Err(Errno(libc::EINVAL)) } else { self.modify(device, attr, mask) }
    }

    fn modify(&self, device: &Device, mut attr: QpAttr, mask: i32) -> Res<()> {
        // SAFETY: a live queue pair; the struct holds what the mask names.
        match unsafe { (device.verbs.ibv_modify_qp)(self.qp, &mut attr, mask) } {
            0 => Ok(()),
            e => Err(Errno(e)),
        }
    }

    /// Posts writes (at most [`WRITES`]) and the message that announces them, in one chain. The
    /// message is copied (inline, or into `room`); what the writes name must stay until the peer has
    /// read it. `id` is what the completion of the message will show, with [`super::device::SENT`].
    pub fn post(&self, writes: &[Write], message: &[u8], room: Room, id: u64) -> Res<()> {
        let mut sges = [Sge::default(); WRITES + 1];
        let mut wrs = [SendWr::EMPTY; WRITES + 1];
        let writes = &writes[..writes.len().min(WRITES)];
        for (i, w) in writes.iter().enumerate() {
            sges[i] = Sge { addr: w.from, length: w.len, lkey: w.lkey };
            wrs[i].opcode = abi::WR_RDMA_WRITE;
            wrs[i].send_flags = if w.len <= self.inline { abi::SEND_INLINE } else { 0 };
            (wrs[i].remote_addr, wrs[i].rkey, wrs[i].wr_id) = (w.to, w.rkey, id | SENT);
        }
        let n = writes.len();
        let mut flags = abi::SEND_SIGNALED | abi::SEND_SOLICITED;
        let mut address = message.as_ptr() as u64;
        if message.len() as u32 <= self.inline {
            flags |= abi::SEND_INLINE;
        } else {
            // SAFETY: `room` is registered memory of this link, not in use (see [`Room`]).
            unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), room.at, message.len().min(Room::LEN)) };
            address = room.at as u64;
        }
        sges[n] = Sge { addr: address, length: message.len().min(Room::LEN) as u32, lkey: room.lkey };
        (wrs[n].opcode, wrs[n].send_flags, wrs[n].wr_id) = (abi::WR_SEND, flags, id | SENT);
        self.chain(&mut wrs[..=n], &mut sges)
    }

    /// Posts one write that announces itself by these 32 bits, in place of a message.
    pub fn post_write(&self, write: &Write, immediate: u32, id: u64) -> Res<()> {
        let mut sges = [Sge { addr: write.from, length: write.len, lkey: write.lkey }];
        let mut wrs = [SendWr::EMPTY];
        let inline = if write.len <= self.inline { abi::SEND_INLINE } else { 0 };
        wrs[0].opcode = abi::WR_RDMA_WRITE_WITH_IMM;
        wrs[0].send_flags = abi::SEND_SIGNALED | abi::SEND_SOLICITED | inline;
        (wrs[0].remote_addr, wrs[0].rkey, wrs[0].wr_id) = (write.to, write.rkey, id | SENT);
        wrs[0].imm = immediate.to_be();
        self.chain(&mut wrs, &mut sges)
    }

    /// Posts anything: what `link::forge` asks for.
    #[cfg(feature = "faults")]
    pub fn post_forged(&self, w: &Write, (opcode, imm, inline): (u32, u32, bool), id: u64) -> Res<()> {
        let mut sges = [Sge { addr: w.from, length: w.len, lkey: w.lkey }];
        let mut wrs = [SendWr::EMPTY];
        wrs[0].opcode = opcode;
        wrs[0].send_flags = abi::SEND_SIGNALED | abi::SEND_SOLICITED;
        wrs[0].send_flags |= if inline && w.len <= self.inline { abi::SEND_INLINE } else { 0 };
        (wrs[0].remote_addr, wrs[0].rkey, wrs[0].wr_id) = (w.to, w.rkey, id | SENT);
        wrs[0].imm = imm.to_be();
        self.chain(&mut wrs, &mut sges)
    }

    /// Posts these requests, each with the segment of its number.
    fn chain(&self, wrs: &mut [SendWr], sges: &mut [Sge]) -> Res<()> {
        if fault::fails(Fault::Posted) {
            return Err(Errno(libc::ENOMEM));
        }
        let last = wrs.len().min(sges.len()) - 1;
        let (wr, sge) = (wrs.as_mut_ptr(), sges.as_mut_ptr());
        for i in 0..=last {
            // SAFETY: both slices have more than `last` entries and live through the call.
            unsafe {
                (*wr.add(i)).sg_list = sge.add(i);
                (*wr.add(i)).num_sge = 1;
                (*wr.add(i)).next = if i < last { wr.add(i + 1) } else { std::ptr::null_mut() };
            }
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair with its context's call; the chain is well formed.
        let r = unsafe {
            match (*(*self.qp).context).post_send {
                Some(post) => post(self.qp, wr, &mut bad),
                None => libc::ENOSYS,
            }
        };
        if r == 0 { Ok(()) } else { Err(Errno(r)) }
    }

    /// Gives it back.
    pub fn destroy(self, device: &Device) {
        // SAFETY: made by `make`, not used after this.
        unsafe { (device.verbs.ibv_destroy_qp)(self.qp) };
    }
}

/// Registered room for one message where it does not fit inline; not reused before its message has
/// completed.
#[derive(Clone, Copy)]
pub struct Room {
    /// The memory.
    pub at: *mut u8,
    /// Its key.
    pub lkey: u32,
}

impl Room {
    /// Bytes of each: the longest LLC message is an Add Link with keys.
    pub const LEN: usize = 256;
}

/// Registered memory.
pub struct Memory {
    mr: *mut Mr,
    verbs: Option<&'static Functions>,
}

// SAFETY: as for `QueuePair`.
unsafe impl Send for Memory {}

impl Memory {
    /// Nothing: a place to be filled.
    pub(super) fn none() -> Memory {
        Memory { mr: std::ptr::null_mut(), verbs: None }
    }

    /// Registers memory of our own that stays mapped as long as the value lives; `remote`: the peer
    /// may write to it.
    pub fn register(domain: &Domain, at: *mut u8, len: usize, remote: bool) -> Res<Memory> {
        if fault::fails(Fault::Registered) {
            return Err(Errno(libc::ENOMEM));
        }
        let access = abi::ACCESS_LOCAL_WRITE | if remote { abi::ACCESS_REMOTE_WRITE } else { 0 };
        // SAFETY: a mapping of ours of this length, see the callers.
        let mr = unsafe { (domain.verbs.ibv_reg_mr)(domain.pd, at.cast(), len, access) };
        if mr.is_null() { Err(crate::sys::errno()) } else { Ok(Memory { mr, verbs: Some(domain.verbs) }) }
    }

    /// Key for use on this side.
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live memory region; keys do not change.
        unsafe { (*self.mr).lkey }
    }

    /// Key for the peer.
    pub fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr).rkey }
    }

    /// Withdraws it.
    pub fn deregister(self) {
        if let Some(verbs) = self.verbs {
            // SAFETY: made by `register`, not used after this.
            unsafe { (verbs.ibv_dereg_mr)(self.mr) };
        }
    }
}
