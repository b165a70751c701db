//! One member of a hooked epoll set, and how long it is waited for before it turns cold.
//!
//! Part of [`super::members`]; looked at by `ready`.

/// What the kernel wakes those with that wait for data (`sock_def_readable`), and for room (`sk_stream_write_space`).
pub const OF_DATA: u32 = (libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDNORM | libc::EPOLLRDBAND) as u32;
pub const OF_ROOM: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

/// EPOLLET, EPOLLONESHOT and EPOLLEXCLUSIVE as the kernel's registrations have them.
pub const ET: u32 = libc::EPOLLET as u32;
pub const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
pub const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// Unproductive looks after which a member turns cold, if 2 ms have passed as well: they cost about what a doorbell does.
pub const PATIENCE: u32 = 500;
/// The same, without the time, of one among many that can be posted: they cost about what that does.
pub const LITTLE: u32 = 32;

/// A member that had nothing is looked at by its cursors alone but for each time of so many: what else may
/// happen to it is rare, and the kernel's set tells it too.
pub const WHOLE: u32 = 8;

/// One member.
#[derive(Clone, Copy)]
pub struct Member {
    /// Descriptor; -1 = free entry.
    pub fd: i32,
    /// What the program asked for.
    pub events: u32,
    /// The program's data.
    pub data: u64,
    /// What the kernel's registration asks for.
    pub kernel: u32,
    /// The program removed it; the kernel's registration is still there.
    pub ghost: bool,
    /// EPOLLONESHOT has fired.
    pub spent: bool,
    /// Its descriptor was closed, a duplicate keeps the socket open: not to be found by number.
    pub orphan: bool,
    /// The number that it had; a duplicate that gets it names it again.
    pub(super) named: i32,
    /// In the hot list.
    pub hot: bool,
    /// Where in the hot list.
    pub(super) hot_at: u32,
    /// Served by the library (a direction in memory).
    pub ours: bool,
    /// Cursor at the last report: the producer's if edge-triggered, else our own.
    pub seen_in: u64,
    /// Edge-triggered: fullness count at the last report.
    pub seen_full: u64,
    /// Edge-triggered: bits at the last look.
    pub seen_bits: u32,
    /// Level-triggered: nothing was read between the last two reports.
    pub lingers: bool,
    /// Edges of both: the medium on which data comes has changed since the last report, and TCP may have brought some before that.
    pub moved: bool,
    /// Switches of that direction that were taken in.
    pub switches: u32,
    /// Report again whatever was seen (ADD, MOD).
    pub fresh: bool,
    /// Unproductive looks in a row.
    pub idle: u32,
    /// After so many of them it turns cold where many are hot: [`LITTLE`], or [`PATIENCE`] where it could not be posted.
    pub patience: u32,
    /// By which log it is heard of ([`super::logs`]) + 1; 0: by none.
    pub log: u8,
    /// Tick at which it was posted; 0: it has given back what it does not need since.
    pub posted_at: u64,
    /// Tick of the last productive look.
    pub last: u64,
    /// Generation of the socket record at ADD.
    pub generation: u32,
    /// Counted in `Sock::sets`.
    pub counted: bool,
    /// Counted in `Sock::unseen`.
    pub hidden: bool,
}

impl Member {
    /// Whether the program asks for room, by either name.
    #[inline]
    pub fn asks_for_room(&self) -> bool {
        self.events & OF_ROOM != 0
    }

    /// Not level-triggered: what the kernel has told, it shows no more.
    #[inline]
    pub fn tells_once(&self) -> bool {
        self.events & (ET | ONESHOT) != 0
    }

    /// Edge-triggered, for data and for room: what arrives wakes it, and if that was read before the wait the edge is one of room.
    #[inline]
    pub fn has_edges_of_both(&self) -> bool {
        self.events & ET != 0 && self.asks_for_data() && self.asks_for_room()
    }

    /// The next look at it is a whole one: there may be what its cursors don't show.
    #[inline]
    pub fn is_looked_at_whole(&mut self) {
        self.idle = WHOLE - 1;
    }

    /// Whether what arrives is for it, urgent or not.
    #[inline]
    pub fn asks_for_data(&self) -> bool {
        self.events & OF_DATA != 0
    }
}

/// A free entry.
pub(super) const NO_MEMBER: Member = Member {
    fd: -1,
    events: 0,
    data: 0,
    kernel: 0,
    ghost: false,
    spent: false,
    orphan: false,
    named: -1,
    hot: false,
    hot_at: 0,
    ours: false,
    seen_in: 0,
    seen_full: 0,
    seen_bits: 0,
    lingers: false,
    moved: false,
    switches: 0,
    fresh: false,
    idle: 0,
    patience: LITTLE,
    log: 0,
    posted_at: 0,
    last: 0,
    generation: 0,
    counted: false,
    hidden: false,
};
