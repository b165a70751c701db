//! The control page: by which a user, and root for the host, steers running processes.
//!
//! It is a file of [`LEN`] bytes that `smcrctl` writes and every process with the library maps
//! read-only: [`HOST_PATH`] (of root, readable by all) and for each user `$XDG_RUNTIME_DIR/`
//! [`USER_RUNTIME_PATH`] or, without that variable, `$HOME/`[`USER_HOME_PATH`]. A reader takes it
//! only if the file belongs to root (host) or to its own effective user (user), and nobody else
//! may write to it. The environment is stronger than the user's page, that than the host's, that
//! than the defaults.
//!
//! **Change in place.** A mapping outlives a rename, so the bytes of the mapped file change. The
//! word [`GENERATION`] is odd while they do and even when they are whole; each change adds 2.
//! - Writer ([`store`]; one at a time, held apart by a lock file): odd generation, release fence,
//!   the other words, then the next even generation with release. A writer that dies in between
//!   leaves the generation odd: readers keep what they had, and the next writer repairs it.
//! - Reader: [`generation`] is one load, compared with the generation read last. If it differs,
//!   [`read`] copies and parses; while a writer is at work it answers [`ReadError::Busy`], and the
//!   reader keeps its old policy and asks again at its next connection.
//!
//! The file is never made shorter while it is in use, and is replaced only at a new version.
//!
//! Layout: little-endian, at the fixed offsets of [`mod@offset`]; what is reserved is zero.

pub mod drain;
pub mod fault;
mod image;
pub mod layer;
pub mod list;
pub mod policy;
pub mod profile;
pub mod rule;
mod show;
#[cfg(test)]
mod tests;
pub mod text;

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering, fence};

pub use drain::{Drains, Target};
pub use fault::TextError;
pub use layer::{Attribute, Layer, origin, resolve, resolve_into};
pub use list::{Eid, PortRange, Prefix};
pub use policy::{Flow, Mode, PeerUid, Policy, decide, decide_listener, decide_peer};
pub use profile::{PROFILES, Profile};
pub use rule::{Role, Rule};

/// First 8 bytes of the page.
pub const MAGIC: [u8; 8] = *b"SMCRCTL\0";
/// Layout version; a reader refuses a newer one and keeps its defaults.
pub const VERSION: u32 = 1;
/// Bytes of the page.
pub const LEN: usize = 8192;
/// Words of the page.
pub const WORDS: usize = LEN / 8;
/// Index of the generation among the words.
pub const GENERATION: usize = offset::GENERATION / 8;

/// Page of the host, written by root.
pub const HOST_PATH: &str = "/run/smcr/control";
/// Page of a user, below `$XDG_RUNTIME_DIR`.
pub const USER_RUNTIME_PATH: &str = "smcr/control";
/// Page of a user without `$XDG_RUNTIME_DIR`, below `$HOME`.
pub const USER_HOME_PATH: &str = ".local/state/smcr/control";

/// Offsets in the page (bytes), and sizes of its records.
pub mod offset {
    use super::drain::RING;
    use super::list::{EID_CAP, EID_LEN, LIST_CAP};

    /// 8 bytes, [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// u32, [`super::VERSION`].
    pub const VERSION: usize = 8;
    /// u32, [`super::LEN`].
    pub const LENGTH: usize = 12;
    /// u64: odd while the page is being changed.
    pub const GENERATION: usize = 16;
    /// u64: bit n is set if attribute n is.
    pub const SET: usize = 24;
    /// u32: 0 or 1.
    pub const ENABLED: usize = 64;
    /// u32: see [`super::Mode`].
    pub const MODE: usize = 68;
    /// u32: 0 or 1.
    pub const STRICT: usize = 72;
    /// u32: microseconds.
    pub const SPIN_US: usize = 76;
    /// u32: megabytes.
    pub const MAX_MEMORY: usize = 80;
    /// u32.
    pub const SWITCH_OPS: usize = 84;
    /// u64.
    pub const SWITCH_BYTES: usize = 88;
    /// u32: 0 any, 1 same, 2 the user in [`PEER_UID`].
    pub const PEER_UID_KIND: usize = 96;
    /// u32.
    pub const PEER_UID: usize = 100;
    /// u32: records used at [`PORTS`].
    pub const PORT_COUNT: usize = 104;
    /// u32: records used at [`ADDRS`].
    pub const ADDR_COUNT: usize = 108;
    /// u32: records used at [`RULES`].
    pub const RULE_COUNT: usize = 112;
    /// u32: records used at [`EIDS`].
    pub const EID_COUNT: usize = 116;
    /// u64: number of the newest drain request, 0 = none.
    pub const DRAIN_NEWEST: usize = 120;
    /// Port ranges: u16 first, u16 last.
    pub const PORTS: usize = 256;
    /// Bytes of a port range.
    pub const PORT_SIZE: usize = 4;
    /// Prefixes: 16 bytes address (IPv4 in the first four), u8 family (4, 6), u8 bits, 2 bytes 0.
    pub const ADDRS: usize = PORTS + LIST_CAP * PORT_SIZE;
    /// Bytes of a prefix.
    pub const ADDR_SIZE: usize = 20;
    /// EIDs: 32 bytes each.
    pub const EIDS: usize = ADDRS + LIST_CAP * ADDR_SIZE;
    /// Drain requests: u32 kind (0 all, 1 process, 2 port), u32 pid or port, u64 start time.
    pub const DRAINS: usize = EIDS + EID_CAP * EID_LEN;
    /// Bytes of a drain request.
    pub const DRAIN_SIZE: usize = 16;
    /// Rules: 32 bytes program pattern, u8 order (0 smcr, 1 tcp), u8 role (0 both, 1 client, 2
    /// server), 2 bytes 0, u32 uid (all ones = any), u16 first and u16 last port (0 = any), then
    /// at 44 a prefix (family 0 = anywhere).
    pub const RULES: usize = DRAINS + RING * DRAIN_SIZE;
    /// Bytes of a rule.
    pub const RULE_SIZE: usize = 64;
    /// First byte behind the last record.
    pub const END: usize = RULES + LIST_CAP * RULE_SIZE;
}

const _: () = assert!(offset::END <= LEN && offset::RULES.is_multiple_of(8));

/// What a page says.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Page {
    /// The attributes that it sets.
    pub layer: Layer,
    /// The last requests to move connections back to TCP.
    pub drains: Drains,
}

/// Why a page cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageError {
    /// The file has only this many bytes.
    TooShort(usize),
    /// It does not begin as a control page does.
    NotAPage,
    /// It was written by a newer `smcrctl`, with this layout version.
    Newer(u32),
    /// A field, named here, has a value that cannot be.
    Field(&'static str),
}

/// Why a mapped page was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// A writer is at work, or died at it: keep the old policy and ask again.
    Busy,
    /// The page is whole but cannot be used.
    Page(PageError),
}

/// The generation of a mapped page: one load. Even and other than at the last [`read`]: read it.
pub fn generation(page: &[AtomicU64]) -> u64 {
    page.get(GENERATION).map_or(0, |word| u64::from_le(word.load(Ordering::Acquire)))
}

/// Copies and parses a mapped page; gives the generation that this is.
///
/// Needs about 32 KiB of stack; [`read_into`] needs next to nothing.
pub fn read(page: &[AtomicU64]) -> Result<(u64, Page), ReadError> {
    let (mut image, mut out) = ([0; LEN], Page::default());
    let generation = read_into(page, &mut image, &mut out)?;
    Ok((generation, out))
}

/// As [`read`], into memory of the caller. After an error, what is in `out` means nothing.
pub fn read_into(page: &[AtomicU64], image: &mut [u8; LEN], out: &mut Page) -> Result<u64, ReadError> {
    let generation = copy(page, image)?;
    image::parse(image, out).map_err(ReadError::Page)?;
    Ok(generation)
}

/// Attempts of [`copy`] before it gives up on a busy page.
const TRIES: usize = 16;

/// Copies a mapped page that nobody is changing; gives its generation.
pub fn copy(page: &[AtomicU64], image: &mut [u8; LEN]) -> Result<u64, ReadError> {
    if page.len() < WORDS {
        return Err(ReadError::Page(PageError::TooShort(page.len() * 8)));
    }
    for _ in 0..TRIES {
        let before = generation(page);
        if before % 2 == 1 {
            core::hint::spin_loop();
            continue;
        }
        for (to, from) in image.chunks_exact_mut(8).zip(page) {
            to.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
        // Partner: the release fence in `store`. If a word of a change was copied, the odd
        // generation before it, or a later one, is seen here.
        fence(Ordering::Acquire);
        if generation(page) == before {
            return Ok(before);
        }
    }
    Err(ReadError::Busy)
}

/// Writes a page into a mapping; its `generation` field is not taken from `image` but moved on.
/// The caller sees to it that there is one writer at a time.
pub fn store(page: &[AtomicU64], image: &[u8; LEN]) -> u64 {
    let Some(word) = page.get(GENERATION) else {
        return 0;
    };
    let odd = u64::from_le(word.load(Ordering::Relaxed)) | 1;
    let even = odd.wrapping_add(1);
    word.store(odd.to_le(), Ordering::Relaxed);
    // Partner: the acquire fence in `copy`.
    fence(Ordering::Release);
    for (i, (to, from)) in page.iter().zip(image.as_chunks::<8>().0).enumerate() {
        if i != GENERATION {
            to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
    }
    word.store(even.to_le(), Ordering::Release);
    even
}

/// Reads the bytes of a page. Whatever they are, it does not panic.
pub fn parse(bytes: &[u8]) -> Result<Page, PageError> {
    let mut page = Page::default();
    image::parse(bytes, &mut page)?;
    Ok(page)
}

/// The bytes of a page; the generation is left 0.
pub fn emit(page: &Page, image: &mut [u8; LEN]) {
    image::emit(page, image);
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageError::TooShort(len) => {
                write!(f, "the control page has {len} bytes instead of {LEN}")
            }
            PageError::NotAPage => f.write_str("the file is not a control page"),
            PageError::Newer(version) => write!(f, "the control page has layout version {version}, newer than {VERSION}; upgrade this program"),
            PageError::Field(name) => {
                write!(f, "the control page has an impossible value of {name}")
            }
        }
    }
}

impl core::error::Error for PageError {}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Busy => f.write_str("the control page is being changed"),
            ReadError::Page(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ReadError {}
