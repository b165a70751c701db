//! The stable C interface of libibverbs (IBVERBS_1.1), as far as SMC-R needs it: structs and numbers.
//!
//! Written by hand because the crates that bind it want libclang and the headers at build time
//! (docs/decisions/09-rdma.md). Sizes and places are those of rdma-core on 64-bit Linux and are
//! checked below; fields that nobody here reads are left as gaps. Used by the other files of this
//! folder alone.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// struct ibv_device; only pointers to it are used.
#[repr(C)]
pub struct Device {
    _opaque: [u8; 0],
}

/// struct ibv_context with the calls that have no symbol of their own.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    _ops0: [*const c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    _ops1: [*const c_void; 7],
    pub post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    _ops2: [*const c_void; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    _ops3: [*const c_void; 6],
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    _tail: [u64; 7],
}

/// struct ibv_pd.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// struct ibv_mr.
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// struct ibv_comp_channel.
#[repr(C)]
pub struct Channel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// struct ibv_cq, the part in front.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut Channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

/// struct ibv_srq, the part in front.
#[repr(C)]
pub struct Srq {
    pub context: *mut Context,
}

/// struct ibv_qp, the part in front.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    _gap: [u8; 44],
    pub qp_num: u32,
    pub state: u32,
}

/// struct ibv_qp_cap.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// struct ibv_qp_init_attr.
#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut Srq,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

/// struct ibv_srq_init_attr with its struct ibv_srq_attr.
#[repr(C)]
pub struct SrqInitAttr {
    pub srq_context: *mut c_void,
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

/// struct ibv_ah_attr with its struct ibv_global_route.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub gap: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// struct ibv_qp_attr.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// struct ibv_sge.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// struct ibv_send_wr.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: u32,
    pub imm: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    _pad: u32,
    _rest: [u64; 9],
}

/// struct ibv_recv_wr.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: *mut RecvWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
}

/// struct ibv_wc.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    _rest: [u32; 2],
}

/// struct ibv_device_attr: only some limits are read.
#[repr(C)]
pub struct DeviceAttr {
    _a: [u8; 112],
    pub max_qp_wr: i32,
    _b: [u8; 16],
    pub max_cqe: i32,
    _c: [u8; 76],
    pub max_srq: i32,
    pub max_srq_wr: i32,
    _d: [u8; 12],
}

/// The struct that the symbol ibv_query_port fills (the one before port_cap_flags2).
#[repr(C)]
#[derive(Default)]
pub struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    _rest: [u32; 16],
}

/// struct ibv_async_event, whose event number may be one that no header knew.
#[repr(C)]
#[derive(Default)]
pub struct AsyncEvent {
    pub element: u64,
    pub event: u32,
}

impl SendWr {
    /// An empty one.
    pub const EMPTY: SendWr = SendWr {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm: 0,
        remote_addr: 0,
        rkey: 0,
        _pad: 0,
        _rest: [0; 9],
    };
}

pub const QPT_RC: u32 = 2;
pub const QPS_INIT: u32 = 1;
pub const QPS_RTR: u32 = 2;
pub const QPS_RTS: u32 = 3;
pub const QPS_ERR: u32 = 6;
pub const PORT_ACTIVE: u32 = 4;
pub const ACCESS_LOCAL_WRITE: c_int = 1;
pub const ACCESS_REMOTE_WRITE: c_int = 2;
pub const WR_RDMA_WRITE: u32 = 0;
pub const WR_RDMA_WRITE_WITH_IMM: u32 = 1;
pub const WR_SEND: u32 = 2;
pub const WC_WITH_IMM: u32 = 2;
/// Status of a send that nobody has answered.
pub const RETRIES_EXCEEDED: u32 = 12;
pub const SEND_SIGNALED: u32 = 2;
pub const SEND_SOLICITED: u32 = 4;
pub const SEND_INLINE: u32 = 8;

pub const MASK_STATE: c_int = 1;
pub const MASK_ACCESS: c_int = 8;
pub const MASK_PKEY: c_int = 16;
pub const MASK_PORT: c_int = 32;
pub const MASK_AV: c_int = 128;
pub const MASK_MTU: c_int = 256;
pub const MASK_TIMEOUT: c_int = 512;
pub const MASK_RETRY: c_int = 1024;
pub const MASK_RNR_RETRY: c_int = 2048;
pub const MASK_RQ_PSN: c_int = 4096;
pub const MASK_MAX_RD: c_int = 8192;
pub const MASK_RNR_TIMER: c_int = 1 << 15;
pub const MASK_SQ_PSN: c_int = 1 << 16;
pub const MASK_MAX_DEST_RD: c_int = 1 << 17;
pub const MASK_DEST_QPN: c_int = 1 << 20;

const _: () = {
    assert!(offset_of!(Context, poll_cq) == 8 + 88);
    assert!(offset_of!(Context, req_notify_cq) == 8 + 96);
    assert!(offset_of!(Context, post_srq_recv) == 8 + 160);
    assert!(offset_of!(Context, post_send) == 8 + 200);
    assert!(offset_of!(Context, cmd_fd) == 264);
    assert!(size_of::<Context>() == 328);
    assert!(size_of::<Mr>() == 48 && offset_of!(Mr, rkey) == 40);
    assert!(offset_of!(Channel, fd) == 8);
    assert!(offset_of!(Cq, cqe) == 28);
    assert!(offset_of!(Qp, qp_num) == 52);
    assert!(size_of::<QpInitAttr>() == 64 && offset_of!(QpInitAttr, qp_type) == 52);
    assert!(size_of::<SrqInitAttr>() == 24);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, port_num) == 30);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(QpAttr, pkey_index) == 120 && offset_of!(QpAttr, rnr_retry) == 132);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, remote_addr) == 40);
    assert!(offset_of!(SendWr, send_flags) == 32);
    assert!(size_of::<RecvWr>() == 32 && size_of::<Sge>() == 16);
    assert!(size_of::<Wc>() == 48 && offset_of!(Wc, qp_num) == 28);
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_cqe) == 132);
    assert!(offset_of!(DeviceAttr, max_srq_wr) == 216);
    assert!(size_of::<AsyncEvent>() == 16);
};

macro_rules! functions {
    ($($name:ident: fn($($t:ty),*) -> $r:ty;)*) => {
        /// The functions that are looked up by name.
        pub struct Functions { $(pub $name: unsafe extern "C" fn($($t),*) -> $r,)* }

        impl Functions {
            /// Fills the table; None if a name is missing.
            ///
            /// # Safety
            /// `find` must give the function of libibverbs with that name, or null.
            pub unsafe fn fill(find: impl Fn(*const c_char) -> *mut c_void) -> Option<Functions> {
                Some(Functions {$(
                    $name: {
                        let p = find(concat!(stringify!($name), "\0").as_ptr().cast());
                        if p.is_null() {
                            return None;
                        }
                        // SAFETY: by the contract; the type is that of the header.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($t),*) -> $r>(p) }
                    },
                )*})
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list: fn(*mut *mut Device) -> ();
    ibv_get_device_name: fn(*mut Device) -> *const c_char;
    ibv_open_device: fn(*mut Device) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
    ibv_dealloc_pd: fn(*mut Pd) -> c_int;
    ibv_reg_mr: fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut Channel;
    ibv_destroy_comp_channel: fn(*mut Channel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_create_srq: fn(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    ibv_destroy_srq: fn(*mut Srq) -> c_int;
    ibv_create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    ibv_get_cq_event: fn(*mut Channel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, u32) -> ();
    ibv_get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
    ibv_ack_async_event: fn(*mut AsyncEvent) -> ();
}
