//! An open RDMA device: completion queues with their channel. What links use of it is in [`super::domain`].
//!
//! Opened when the first link over it is made, and kept to the end of the process, or until it is removed. Few completion
//! queues for everything, so whoever polls sees all arrivals. Its descriptors are moved out of the program's way.

use super::abi::{self, AsyncEvent, Channel, Context, Cq, DeviceAttr, Functions, PortAttr, Wc};
use super::load;
use super::port::Port;
use crate::fault::{self, Step as Fault};
use crate::log;
use crate::sys::{self, Errno, Res, fd};
use smcr_proto::smc::id::Mtu;
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// Bytes of a receive buffer: any message that is read fits (Add Link of version 2 has 88 and more, 216 between two libsmcr).
pub const MESSAGE: usize = 256;
/// Bytes that may come behind these: a kernel of release 2.0 asks for a second link as soon as it has a port for it, and names up to 255 memories,
/// each with 16 bytes. It is to be told no; what has no room fails the link.
pub const REST: usize = 4096;
/// Completions that a queue holds: those of fourteen links.
const COMPLETIONS: i32 = 16384;

/// An open device, one port of it.
pub struct Device {
    pub(super) verbs: &'static Functions,
    /// Name and port.
    pub name: String,
    /// Number of the port.
    pub port: u8,
    /// Null once it is closed.
    pub(super) context: *mut Context,
    channel: *mut Channel,
    queues: Vec<Queue>,
    /// Completions of a queue.
    entries: i32,
    /// Receives that a shared receive queue may have.
    pub(super) max_receives: u32,
}

/// A completion queue.
struct Queue {
    cq: *mut Cq,
    /// Completions that are not promised to a domain.
    room: u32,
    unacknowledged: u32,
}

// SAFETY: libibverbs allows the calls from any thread; the owner's lock serialises them.
unsafe impl Send for Device {}

/// Bit of the ids of sends; the others are receive buffers. (A failed completion has no valid opcode.)
pub const SENT: u64 = 1 << 63;

/// What a device says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceEvent {
    /// A queue pair has failed: its address, see [`super::qp::QueuePair::is_at`].
    QueuePair(u64),
    /// The device is of no use any more.
    Fatal,
    /// The port has come up. Another port of the device is no matter of this context.
    PortUp,
    /// The port has gone down.
    PortDown,
    /// Nothing that matters here.
    Other,
}

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

/// Completions that are taken in one round.
pub const MOST: usize = 16;

/// Where they are put, which costs nothing where there are none: most looks find none.
pub struct Batch([MaybeUninit<Wc>; MOST]);

impl Batch {
    /// Nothing in it.
    pub const EMPTY: Batch = Batch([const { MaybeUninit::uninit() }; MOST]);
}

impl Completion {
    #[inline]
    fn of(wc: &Wc) -> Completion {
        Completion {
            id: wc.wr_id,
            status: status(wc),
            arrived: wc.wr_id & SENT == 0,
            len: wc.byte_len,
            immediate: (wc.wc_flags & abi::WC_WITH_IMM != 0).then_some(u32::from_be(wc.imm)),
            qpn: wc.qp_num,
        }
    }
}

impl Device {
    /// Opens the device of a port.
    pub fn open(port: &Port) -> Res<Device> {
        let verbs = load::functions().ok_or(Errno(libc::ENOSYS))?;
        if fault::fails(Fault::DeviceOpened) {
            return Err(Errno(libc::ENODEV));
        }
        let context = open(verbs, &port.device)?;
        // SAFETY: an open context.
        let out_of_the_way = unsafe { [&mut (*context).cmd_fd, &mut (*context).async_fd] };
        for fd in out_of_the_way {
            *fd = fd::park(*fd);
        }
        let mut device = Device {
            verbs,
            name: port.device.clone(),
            port: port.port,
            context,
            channel: std::ptr::null_mut(),
            queues: Vec::new(),
            entries: 0,
            max_receives: 0,
        };
        // SAFETY: an open context; its descriptor does not block.
        unsafe {
            let mut limits: DeviceAttr = std::mem::zeroed();
            let asked = (verbs.ibv_query_device)(context, &mut limits) == 0;
            device.entries = if asked && limits.max_cqe > 0 { COMPLETIONS.min(limits.max_cqe) } else { 1024 };
            device.max_receives = limits.max_srq_wr.max(0) as u32;
            device.channel = (verbs.ibv_create_comp_channel)(context);
            let _ = fd::fcntl((*context).async_fd, libc::F_SETFL, libc::O_NONBLOCK as usize);
        }
        if device.channel.is_null() {
            let e = sys::errno();
            device.close();
            return Err(e);
        }
        // SAFETY: a channel just made.
        unsafe {
            (*device.channel).fd = fd::park((*device.channel).fd);
            let _ = fd::fcntl((*device.channel).fd, libc::F_SETFL, libc::O_NONBLOCK as usize);
        }
        log::info!(target: "smcr::verbs", device = port.device.as_str(), port = port.port, "RDMA device opened");
        Ok(device)
    }

    /// The place of a completion queue that has room for so many completions more, which are promised by this.
    pub(super) fn reserve(&mut self, completions: u32) -> Res<usize> {
        let found = self.queues.iter().position(|q| q.room >= completions);
        let place = match found {
            Some(place) => place,
            None if self.is_open() && completions <= self.entries as u32 => {
                // SAFETY: an open context and its channel.
                let cq = unsafe { (self.verbs.ibv_create_cq)(self.context, self.entries, std::ptr::null_mut(), self.channel, 0) };
                if cq.is_null() {
                    return Err(Errno(libc::ENOMEM));
                }
                self.queues.push(Queue { cq, room: self.entries as u32, unacknowledged: 0 });
                self.queues.len() - 1
            }
            None => return Err(Errno(libc::ENODEV)),
        };
        self.queues[place].room -= completions;
        Ok(place)
    }

    /// So many completions of this queue are not promised any more.
    pub(super) fn give_room_back(&mut self, queue: usize, completions: u32) {
        if let Some(q) = self.queues.get_mut(queue) {
            q.room += completions;
        }
    }

    /// The completion queue at this place.
    pub(super) fn cq(&self, place: usize) -> *mut Cq {
        self.queues.get(place).map_or(std::ptr::null_mut(), |q| q.cq)
    }

    /// Whether it has not been closed.
    pub fn is_open(&self) -> bool {
        !self.context.is_null()
    }

    /// Gives it back: it was removed, and the kernel waits for that. No domain of it is left.
    pub fn close(&mut self) {
        for q in self.queues.drain(..) {
            // SAFETY: a live queue; its events are acknowledged, for else this would wait for them.
            unsafe {
                (self.verbs.ibv_ack_cq_events)(q.cq, q.unacknowledged);
                (self.verbs.ibv_destroy_cq)(q.cq);
            }
        }
        // SAFETY: live objects, not used after this.
        unsafe {
            if !self.channel.is_null() {
                (self.verbs.ibv_destroy_comp_channel)(self.channel);
            }
            if !self.context.is_null() {
                (self.verbs.ibv_close_device)(self.context);
            }
        }
        (self.channel, self.context) = (std::ptr::null_mut(), std::ptr::null_mut());
    }

    /// MTU of the port, if it is active.
    pub fn mtu(&self) -> Res<Mtu> {
        if !self.is_open() {
            return Err(Errno(libc::ENODEV));
        }
        let mut attr = PortAttr::default();
        // SAFETY: the symbol of this version fills 48 bytes of the struct.
        match unsafe { (self.verbs.ibv_query_port)(self.context, self.port, &mut attr) } {
            0 if attr.state == abi::PORT_ACTIVE => Mtu::from_code(attr.active_mtu as u8).map_err(|_| Errno(libc::EINVAL)),
            _ => Err(Errno(libc::ENETDOWN)),
        }
    }

    /// The descriptor that becomes readable when an armed queue has something; -1 once it is closed.
    pub fn event_fd(&self) -> i32 {
        // SAFETY: a live channel, if there is one.
        unsafe { self.channel.as_ref() }.map_or(-1, |c| c.fd)
    }

    /// The descriptor of device events, as above.
    pub fn async_fd(&self) -> i32 {
        // SAFETY: a live context, if there is one.
        unsafe { self.context.as_ref() }.map_or(-1, |c| c.async_fd)
    }

    /// The library's descriptors here.
    pub fn descriptors(&self) -> [i32; 3] {
        // SAFETY: as above.
        [self.event_fd(), self.async_fd(), unsafe { self.context.as_ref() }.map_or(-1, |c| c.cmd_fd)]
    }

    /// A descriptor of ours has another number now; false if it is none of these.
    pub fn moved(&mut self, old: i32, new: i32) -> bool {
        if !self.is_open() {
            return false;
        }
        // SAFETY: live objects; nobody waits on the number (the lock of the links is held).
        let fds = unsafe { [&mut (*self.channel).fd, &mut (*self.context).async_fd, &mut (*self.context).cmd_fd] };
        fds.into_iter().filter(|fd| **fd == old).map(|fd| *fd = new).count() > 0
    }

    /// Asks for an event: at the next message (`all` false) or at the next completion of any kind. The
    /// caller polls once more afterwards.
    pub fn arm(&self, all: bool) {
        for q in &self.queues {
            // SAFETY: a live queue with its context's call.
            unsafe {
                if let Some(arm) = (*self.context).req_notify_cq {
                    arm(q.cq, i32::from(!all));
                }
            }
        }
    }

    /// Takes an event off the channel. There may be another, of an earlier time that the queue was armed: it wakes
    /// somebody for nothing then, which is cheaper than to ask each time.
    pub fn take_event(&mut self) -> bool {
        let (mut cq, mut own) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live channel, not blocking.
        if !self.is_open() || unsafe { (self.verbs.ibv_get_cq_event)(self.channel, &mut cq, &mut own) } != 0 {
            return false;
        }
        if let Some(q) = self.queues.iter_mut().find(|q| q.cq == cq) {
            q.unacknowledged += 1;
            if q.unacknowledged > 64 {
                // SAFETY: so many events were taken and not acknowledged yet.
                unsafe { (self.verbs.ibv_ack_cq_events)(q.cq, q.unacknowledged) };
                q.unacknowledged = 0;
            }
        }
        true
    }

    /// Takes a device event.
    pub fn take_async(&self) -> Option<DeviceEvent> {
        if !self.is_open() {
            return None;
        }
        let mut event = AsyncEvent::default();
        // SAFETY: a live context whose descriptor does not block; the struct has the layout.
        unsafe {
            if (self.verbs.ibv_get_async_event)(self.context, &mut event) != 0 {
                return None;
            }
            (self.verbs.ibv_ack_async_event)(&mut event);
        }
        Some(meant_by(&event, self.port))
    }

    /// Rounds of [`Device::poll`] in which all is taken that is in its queues now.
    pub fn rounds(&self) -> u32 {
        self.queues.len() as u32 * (self.entries as u32 / MOST as u32 + 1)
    }

    /// Takes completions off the queues, at most [`MOST`]: in each round another one is the first.
    pub fn poll<'a>(&self, to: &'a mut Batch, round: usize) -> impl ExactSizeIterator<Item = Completion> + use<'a> {
        let mut n = 0;
        let from = if self.queues.len() > 1 { round % self.queues.len() } else { 0 };
        for q in self.queues[from..].iter().chain(&self.queues[..from]) {
            // SAFETY: a live queue with its context's call; the batch has room for as many entries left.
            let more = unsafe {
                match (*self.context).poll_cq {
                    Some(poll) => poll(q.cq, (MOST - n) as i32, to.0[n..].as_mut_ptr().cast()),
                    None => 0,
                }
            };
            n += more.clamp(0, (MOST - n) as i32) as usize;
            if n == MOST {
                break;
            }
        }
        // SAFETY: so many were written, one behind the other.
        to.0[..n].iter().map(|wc| Completion::of(unsafe { wc.assume_init_ref() }))
    }
}

/// What an event says to who uses this port. Each context of a device hears of all its ports; the number of one is an int, in the first
/// half of what is an address elsewhere.
fn meant_by(event: &AsyncEvent, port: u8) -> DeviceEvent {
    let half = event.element.to_ne_bytes();
    let is_ours = u32::from_ne_bytes([half[0], half[1], half[2], half[3]]) == u32::from(port);
    match event.event {
        1..=3 => DeviceEvent::QueuePair(event.element),
        8 => DeviceEvent::Fatal,
        9 if is_ours => DeviceEvent::PortUp,
        10 if is_ours => DeviceEvent::PortDown,
        _ => DeviceEvent::Other,
    }
}

/// Of a completion; in the build with faults a send may be said to have failed.
fn status(wc: &Wc) -> u32 {
    if wc.wr_id & SENT == 0 {
        fault::pass(Fault::Arrived);
    } else if wc.status == 0 && fault::fails(Fault::SendCompleted) {
        return abi::RETRIES_EXCEEDED;
    }
    wc.status
}

/// ENODEV: there is none of that name; else what the library found.
fn open(verbs: &Functions, name: &str) -> Res<*mut Context> {
    let mut n = 0;
    // SAFETY: the list is used and freed here; its entries are valid up to `n`, and a context keeps its
    // device.
    unsafe {
        let list = (verbs.ibv_get_device_list)(&mut n);
        if list.is_null() {
            return Err(sys::errno());
        }
        let mut found = Err(Errno(libc::ENODEV));
        for i in 0..n.max(0) as usize {
            let device = *list.add(i);
            let its = CStr::from_ptr((verbs.ibv_get_device_name)(device));
            if its.to_bytes() == name.as_bytes() {
                let context = (verbs.ibv_open_device)(device);
                found = if context.is_null() { Err(sys::errno()) } else { Ok(context) };
                break;
            }
        }
        (verbs.ibv_free_device_list)(list);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_port_of_the_device_is_no_matter() {
        // The kernel's int beside four bytes of anything.
        let of_port = |event, n: u32| {
            let mut element = [0xee; 8];
            element[..4].copy_from_slice(&n.to_ne_bytes());
            meant_by(&AsyncEvent { element: u64::from_ne_bytes(element), event }, 2)
        };
        assert_eq!([of_port(9, 2), of_port(10, 2)], [DeviceEvent::PortUp, DeviceEvent::PortDown]);
        assert_eq!([of_port(9, 1), of_port(10, 1)], [DeviceEvent::Other; 2]);
        assert_eq!(of_port(8, 1), DeviceEvent::Fatal, "the whole device");
    }
}
