//! One control page of another process (smcrctl), mapped read-only.
//!
//! All but [`Mapped::has_changed`] is called by the one thread that works on the pages.

use super::place;
use crate::log;
use crate::sys::few::Brief;
use crate::sys::{Errno, Res, fd, mem, proc};
use smcr_proto::control::{self, Drains, LEN, Page, ReadError, Target, WORDS};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Whose page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Root's, for everybody.
    Host,
    /// That of the effective user.
    User,
}

/// What [`Mapped::read`] did.
pub enum Read {
    /// The page is there.
    Done,
    /// It cannot be used.
    Refused,
    /// A writer is at work: what was read before holds on.
    Later,
}

/// A page, or its absence.
pub struct Mapped {
    /// Its first word; null while there is none. Once mapped, the address stays.
    at: AtomicPtr<AtomicU64>,
    /// The generation looked at last.
    seen: AtomicU64,
    /// Number of the last request that was looked at.
    drained: AtomicU64,
    /// Device and inode of the file; of one that was refused as well.
    file: [AtomicU64; 2],
    uid: AtomicU32,
    who: Who,
    /// Bits: [`LOOKED`], [`FRESH`].
    state: AtomicU32,
}

/// It was looked for.
const LOOKED: u32 = 1;
/// The page is older than our first look, and has not been read.
const FRESH: u32 = 2;

impl Mapped {
    pub const fn new(who: Who) -> Mapped {
        Mapped {
            at: AtomicPtr::new(std::ptr::null_mut()),
            seen: AtomicU64::new(u64::MAX),
            drained: AtomicU64::new(0),
            file: [AtomicU64::new(0), AtomicU64::new(0)],
            uid: AtomicU32::new(0),
            who,
            state: AtomicU32::new(0),
        }
    }

    /// Whether the page says something that was not looked at.
    #[inline]
    pub fn has_changed(&self) -> bool {
        match self.words() {
            Some(words) => control::generation(words) != self.seen.load(Relaxed),
            None => false,
        }
    }

    fn words(&self) -> Option<&'static [AtomicU64]> {
        let p = self.at.load(Acquire); // pairs with the Release in `find`
        // SAFETY: a mapping of LEN bytes that is never unmapped, only mapped over; atomics alone are
        // read from it, for which any bytes are valid.
        (!p.is_null()).then(|| unsafe { std::slice::from_raw_parts(p, WORDS) })
    }

    /// Looks for the file. True if the layer that was read before is void: the page is another one, or
    /// another user's.
    pub fn find(&self) -> bool {
        let first = self.state.fetch_or(LOOKED, Relaxed) & LOOKED == 0;
        let uid = match self.who {
            Who::Host => 0,
            Who::User => proc::euid(),
        };
        // setuid(2) since: the settings of the user before are not ours.
        let void = !first && self.uid.swap(uid, Relaxed) != uid && !self.at.load(Relaxed).is_null();
        if first {
            self.uid.store(uid, Relaxed);
        }
        if void {
            self.at.store(std::ptr::null_mut(), Release);
            self.forget_file();
        }
        let path = match self.who {
            Who::Host => place::host_path(),
            Who::User => place::user_path(),
        };
        let Some(path) = path else { return void };
        // Not there: what is mapped holds on, since a chroot(2) hides the path and changes nothing.
        let Ok(file) = Brief::open(|| fd::open_untrusted(path)) else { return void };
        let found = self.take(file.fd(), uid, path, first);
        void || found
    }

    /// Maps an open file, if it is a page of the right owner and not the one that is mapped.
    fn take(&self, file: i32, uid: u32, path: &CStr, first: bool) -> bool {
        let Ok(st) = fd::stat(file) else { return false };
        if self.file[0].load(Relaxed) == st.st_dev && self.file[1].load(Relaxed) == st.st_ino {
            return false;
        }
        self.file[0].store(st.st_dev, Relaxed);
        self.file[1].store(st.st_ino, Relaxed);
        let wrong = if st.st_mode & libc::S_IFMT != libc::S_IFREG {
            Some("it is not a file")
        } else if st.st_uid != uid {
            Some("it belongs to another user")
        } else if st.st_mode & 0o022 != 0 {
            Some("others may write to it")
        } else if (st.st_size as u64) < LEN as u64 {
            Some("it is too short")
        } else {
            None
        };
        if let Some(why) = wrong {
            log::warn!(target: "smcr::control", path = ?path, why, "control page ignored");
            return false;
        }
        let old = self.at.load(Relaxed);
        let Ok(p) = map(old, file) else {
            self.forget_file();
            return false;
        };
        // Older than our first look: its requests are for those who were there. Made since: each of
        // them came while we were.
        self.drained.store(0, Relaxed);
        if first {
            self.state.fetch_or(FRESH, Relaxed);
        }
        self.seen.store(u64::MAX, Relaxed);
        self.at.store(p.cast(), Release);
        log::debug!(target: "smcr::control", path = ?path, "control page mapped");
        !old.is_null()
    }

    fn forget_file(&self) {
        self.file[0].store(0, Relaxed);
        self.file[1].store(0, Relaxed);
    }

    /// Copies and parses the page.
    pub fn read(&self, image: &mut [u8; LEN], page: &mut Page) -> Read {
        let Some(words) = self.words() else { return Read::Later };
        let now = control::generation(words);
        match control::read_into(words, image, page) {
            Ok(generation) => {
                self.seen.store(generation, Relaxed);
                if self.state.fetch_and(!FRESH, Relaxed) & FRESH != 0 {
                    self.drained.store(page.drains.newest, Relaxed);
                }
                Read::Done
            }
            Err(ReadError::Busy) => {
                // Odd: the next even number differs from it, so a dead writer costs no more looks.
                if now % 2 == 1 {
                    self.seen.store(now, Relaxed);
                }
                Read::Later
            }
            Err(ReadError::Page(error)) => {
                self.seen.store(now, Relaxed);
                log::warn!(target: "smcr::control", error = %error, "control page ignored");
                Read::Refused
            }
        }
    }

    /// The requests that came since the last call.
    pub fn requests<'a>(&self, drains: &'a Drains) -> impl Iterator<Item = Target> + 'a {
        let seen = self.drained.swap(drains.newest, Relaxed);
        drains.since(seen)
    }
}

/// Maps the file where the page is mapped, or anywhere.
fn map(old: *mut AtomicU64, file: i32) -> Res<*mut u8> {
    if old.is_null() {
        return mem::map_shared(file, LEN, false);
    }
    match mem::map_over(old.cast(), file, LEN, false) {
        Ok(p) if p == old.cast() => Ok(p),
        Ok(_) => Err(Errno(libc::EINVAL)),
        Err(e) => Err(e),
    }
}
