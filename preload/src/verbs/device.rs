//! An open RDMA device: protection domain, completion queue with its channel, shared receive queue.
//!
//! Opened when the first link over it is made, and kept to the end of the process. One completion queue
//! for everything, so whoever polls sees all arrivals; one pool of receive buffers, so a link that is
//! flooded borrows from the idle ones. Its descriptors are moved out of the program's way.

use super::abi::{self, AsyncEvent, Channel, Context, Cq, DeviceAttr, Functions, Pd, PortAttr, RecvWr};
use super::abi::{Sge, Srq, SrqInitAttr, Wc};
use super::load;
use super::port::Port;
use super::qp::Memory;
use crate::log;
use crate::sys::{Errno, Res, device as memory, fd};
use smcr_proto::smc::id::Mtu;
use std::ffi::CStr;

/// Receive buffers of a device.
const RECEIVES: usize = 512;
/// Bytes of each: any message fits (Add Link of version 2 has 88 and more, 216 between two libsmcr).
const RECEIVE_LEN: usize = 256;
/// Completions that the queue holds.
const COMPLETIONS: i32 = 8192;

/// An open device, one port of it.
pub struct Device {
    pub(super) verbs: &'static Functions,
    /// Name and port.
    pub name: String,
    /// Number of the port.
    pub port: u8,
    context: *mut Context,
    pub(super) pd: *mut Pd,
    channel: *mut Channel,
    pub(super) cq: *mut Cq,
    pub(super) srq: *mut Srq,
    buffers: *mut u8,
    memory: Memory,
    unacknowledged: u32,
}

// SAFETY: libibverbs allows the calls from any thread; the owner's lock serialises them.
unsafe impl Send for Device {}

/// Bit of the ids of sends; the others are receive buffers. (A failed completion has no valid opcode.)
pub const SENT: u64 = 1 << 63;

/// Device events: the device is of no use any more; a port has gone down.
pub const DEVICE_FATAL: u32 = 8;
pub const PORT_DOWN: u32 = 10;

/// Something that happened.
#[derive(Clone, Copy)]
pub struct Completion {
    /// What was posted: the id of a send, or the number of a receive buffer.
    pub id: u64,
    /// 0 is success.
    pub status: u32,
    /// A message arrived in buffer `id`.
    pub arrived: bool,
    /// Its length, or that of the write that came with `immediate`.
    pub len: u32,
    /// A write announced itself by these bits, and buffer `id` is as it was.
    pub immediate: Option<u32>,
    /// Number of the queue pair.
    pub qpn: u32,
}

impl Device {
    /// Opens the device of a port.
    pub fn open(port: &Port) -> Res<Device> {
        let verbs = load::functions().ok_or(Errno(libc::ENOSYS))?;
        let context = open(verbs, &port.device).ok_or(Errno(libc::ENODEV))?;
        // SAFETY: an open context.
        let out_of_the_way = unsafe { [&mut (*context).cmd_fd, &mut (*context).async_fd] };
        for fd in out_of_the_way {
            *fd = fd::park(*fd);
        }
        // SAFETY: each object is checked before it is used for the next; what was made before a
        // failure stays, as the device does (a device without memory is not tried often).
        unsafe {
            let pd = (verbs.ibv_alloc_pd)(context);
            let channel = (verbs.ibv_create_comp_channel)(context);
            if pd.is_null() || channel.is_null() {
                return Err(Errno(libc::ENOMEM));
            }
            (*channel).fd = fd::park((*channel).fd);
            let _ = fd::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK as usize);
            let _ = fd::fcntl((*context).async_fd, libc::F_SETFL, libc::O_NONBLOCK as usize);
            let mut limits: DeviceAttr = std::mem::zeroed();
            let entries = match (verbs.ibv_query_device)(context, &mut limits) {
                0 if limits.max_cqe > 0 => COMPLETIONS.min(limits.max_cqe),
                _ => 1024,
            };
            let receives = RECEIVES.min(limits.max_srq_wr.max(0) as usize);
            let cq = (verbs.ibv_create_cq)(context, entries, std::ptr::null_mut(), channel, 0);
            let mut init = SrqInitAttr {
                srq_context: std::ptr::null_mut(),
                max_wr: receives as u32,
                max_sge: 1,
                srq_limit: 0,
            };
            let srq = (verbs.ibv_create_srq)(pd, &mut init);
            if cq.is_null() || srq.is_null() || receives == 0 {
                return Err(Errno(libc::ENOMEM));
            }
            let buffers = memory::map(RECEIVES * RECEIVE_LEN)?;
            let mut device = Device {
                verbs,
                name: port.device.clone(),
                port: port.port,
                context,
                pd,
                channel,
                cq,
                srq,
                buffers,
                // Filled below: registering needs the device.
                memory: Memory::none(),
                unacknowledged: 0,
            };
            device.memory = Memory::register(&device, buffers, RECEIVES * RECEIVE_LEN, false)?;
            for id in 0..receives {
                device.post_receive(id as u64)?;
            }
            log::info!(target: "smcr::verbs", device = port.device.as_str(), port = port.port, "RDMA device opened");
            Ok(device)
        }
    }

    /// MTU of the port, if it is active.
    pub fn mtu(&self) -> Res<Mtu> {
        let mut attr = PortAttr::default();
        // SAFETY: the symbol of this version fills 48 bytes of the struct.
        match unsafe { (self.verbs.ibv_query_port)(self.context, self.port, &mut attr) } {
            0 if attr.state == abi::PORT_ACTIVE => {
                Mtu::from_code(attr.active_mtu as u8).map_err(|_| Errno(libc::EINVAL))
            }
            _ => Err(Errno(libc::ENETDOWN)),
        }
    }

    /// The descriptor that becomes readable when an armed queue has something.
    pub fn event_fd(&self) -> i32 {
        // SAFETY: a live channel.
        unsafe { (*self.channel).fd }
    }

    /// The descriptor of device events.
    pub fn async_fd(&self) -> i32 {
        // SAFETY: a live context.
        unsafe { (*self.context).async_fd }
    }

    /// The library's descriptors here.
    pub fn descriptors(&self) -> [i32; 3] {
        // SAFETY: a live context.
        [self.event_fd(), self.async_fd(), unsafe { (*self.context).cmd_fd }]
    }

    /// A descriptor of ours has another number now; false if it is none of these.
    pub fn moved(&mut self, old: i32, new: i32) -> bool {
        // SAFETY: live objects; nobody waits on the number (the lock of the links is held).
        let fds = unsafe {
            [&mut (*self.channel).fd, &mut (*self.context).async_fd, &mut (*self.context).cmd_fd]
        };
        fds.into_iter().filter(|fd| **fd == old).map(|fd| *fd = new).count() > 0
    }

    /// Asks for an event: at the next message (`all` false) or at the next completion of any kind. The
    /// caller polls once more afterwards.
    pub fn arm(&self, all: bool) {
        // SAFETY: a live queue with its context's call.
        unsafe {
            if let Some(arm) = (*self.context).req_notify_cq {
                arm(self.cq, i32::from(!all));
            }
        }
    }

    /// Takes an event off the channel. There may be another, of an earlier time that the queue was armed: it wakes
    /// somebody for nothing then, which is cheaper than to ask each time.
    pub fn take_event(&mut self) -> bool {
        let (mut cq, mut own) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live channel, not blocking.
        if unsafe { (self.verbs.ibv_get_cq_event)(self.channel, &mut cq, &mut own) } != 0 {
            return false;
        }
        self.unacknowledged += 1;
        if self.unacknowledged > 64 {
            // SAFETY: so many events were taken and not acknowledged yet.
            unsafe { (self.verbs.ibv_ack_cq_events)(self.cq, self.unacknowledged) };
            self.unacknowledged = 0;
        }
        true
    }

    /// Takes a device event; gives its number.
    pub fn take_async(&self) -> Option<u32> {
        let mut event = AsyncEvent::default();
        // SAFETY: a live context whose descriptor does not block; the struct has the layout.
        unsafe {
            if (self.verbs.ibv_get_async_event)(self.context, &mut event) != 0 {
                return None;
            }
            (self.verbs.ibv_ack_async_event)(&mut event);
        }
        Some(event.event)
    }

    /// Takes completions off the queue.
    pub fn poll(&self, out: &mut [Completion; 16]) -> usize {
        let mut wcs = [Wc::default(); 16];
        // SAFETY: a live queue with its context's call; the array has 16 entries.
        let n = unsafe {
            match (*self.context).poll_cq {
                Some(poll) => poll(self.cq, 16, wcs.as_mut_ptr()),
                None => 0,
            }
        };
        let n = n.clamp(0, 16) as usize;
        for (to, wc) in out.iter_mut().zip(&wcs[..n]) {
            *to = Completion {
                id: wc.wr_id,
                status: wc.status,
                arrived: wc.wr_id & SENT == 0,
                len: wc.byte_len,
                immediate: (wc.wc_flags & abi::WC_WITH_IMM != 0).then_some(u32::from_be(wc.imm)),
                qpn: wc.qp_num,
            };
        }
        n
    }

    /// Posts the buffer of a completed receive again into which nothing came.
    pub fn give_back(&self, id: u64) {
        if (id as usize) < RECEIVES {
            let _ = self.post_receive(id);
        }
    }

    /// Copies the message of a completed receive out and posts the buffer again. None: no such buffer.
    pub fn take_message(&self, id: u64, len: u32, out: &mut [u8; RECEIVE_LEN]) -> Option<usize> {
        let n = (len as usize).min(RECEIVE_LEN);
        let at = (id as usize) < RECEIVES;
        if at {
            // SAFETY: a buffer of the array, which the device does not write before it is posted.
            unsafe {
                let from = self.buffers.add(id as usize * RECEIVE_LEN);
                std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), n);
            }
            let _ = self.post_receive(id);
        }
        at.then_some(n)
    }

    fn post_receive(&self, id: u64) -> Res<()> {
        let mut sge = Sge {
            addr: self.buffers as u64 + id * RECEIVE_LEN as u64,
            length: RECEIVE_LEN as u32,
            lkey: self.memory.lkey(),
        };
        let mut wr = RecvWr { wr_id: id, next: std::ptr::null_mut(), sg_list: &mut sge, num_sge: 1 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue with its context's call; request and segment live through it.
        let r = unsafe {
            match (*self.context).post_srq_recv {
                Some(post) => post(self.srq, &mut wr, &mut bad),
                None => libc::ENOSYS,
            }
        };
        if r == 0 { Ok(()) } else { Err(Errno(r)) }
    }
}

/// Bytes of the buffer for [`Device::take_message`].
pub const MESSAGE: usize = RECEIVE_LEN;

fn open(verbs: &Functions, name: &str) -> Option<*mut Context> {
    let mut n = 0;
    // SAFETY: the list is used and freed here; its entries are valid up to `n`, and a context keeps its
    // device.
    unsafe {
        let list = (verbs.ibv_get_device_list)(&mut n);
        if list.is_null() {
            return None;
        }
        let mut found = None;
        for i in 0..n.max(0) as usize {
            let device = *list.add(i);
            let its = CStr::from_ptr((verbs.ibv_get_device_name)(device));
            if its.to_bytes() == name.as_bytes() {
                let context = (verbs.ibv_open_device)(device);
                found = (!context.is_null()).then_some(context);
                break;
            }
        }
        (verbs.ibv_free_device_list)(list);
        found
    }
}
