//! Diagnostics: tracing's macros with a subscriber that neither allocates nor enters a hook.
//!
//! An event is formatted into a buffer on the stack and written by one raw write(2) to a descriptor
//! of our own: SMCR_LOG_FILE, or a copy of stderr made when the library was loaded. SMCR_LOG gives the
//! level, and levels for targets: `info`, `debug`, `smcr::switch=trace,warn`. Without it nothing is
//! opened and a disabled event costs one load.

use crate::sys::{self, Sysno, proc};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicI32, Ordering::*};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Metadata, span};

pub use tracing::{debug, info, warn};

static FD: AtomicI32 = AtomicI32::new(-1);
static IDENTITY: [std::sync::atomic::AtomicU64; 2] = [const { std::sync::atomic::AtomicU64::new(0) }; 2];

/// Most targets with a level of their own.
const TARGETS: usize = 8;

/// Levels as SMCR_LOG gave them.
#[derive(Clone, Copy)]
pub struct Levels {
    all: LevelFilter,
    targets: [(Name, LevelFilter); TARGETS],
}

type Name = ([u8; 24], usize);

impl Levels {
    /// Reads `level[,target=level]...`.
    pub fn parse(text: &str) -> Option<Levels> {
        let mut l = Levels { all: LevelFilter::OFF, targets: [(([0; 24], 0), LevelFilter::OFF); TARGETS] };
        let mut used = 0;
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            match part.split_once('=') {
                None => l.all = part.parse().ok()?,
                Some(("", _)) => return None,
                Some((target, level)) => {
                    let slot = l.targets.get_mut(used)?;
                    let n = target.len();
                    slot.0.0.get_mut(..n)?.copy_from_slice(target.as_bytes());
                    slot.0.1 = n;
                    slot.1 = level.parse().ok()?;
                    used += 1;
                }
            }
        }
        Some(l)
    }

    fn of(&self, target: &str) -> LevelFilter {
        self.targets
            .iter()
            .filter(|(n, _)| n.1 > 0 && target.as_bytes().starts_with(&n.0[..n.1]))
            .max_by_key(|(n, _)| n.1)
            .map_or(self.all, |(_, l)| *l)
    }

    fn most(&self) -> LevelFilter {
        self.targets.iter().map(|(_, l)| *l).chain([self.all]).max().unwrap_or(LevelFilter::OFF)
    }
}

/// Whether anybody hears what is told at the level of single decisions: one load.
#[inline]
pub fn tells_decisions() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

/// Begins to log. Called by the constructor when SMCR_LOG is set. False: there is nothing to write to.
pub fn start(levels: Levels, file: Option<&std::ffi::CStr>) -> bool {
    let fd = match file {
        Some(path) => {
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
            let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0o600, 0, 0];
            // SAFETY: the path is NUL-terminated.
            unsafe { sys::call(Sysno::openat, args) }.map(|n| sys::fd::park(n as i32))
        }
        None => sys::fd::dup_from(2, 1024).or_else(|_| sys::fd::dup_from(2, 64)),
    };
    let Ok(fd) = fd else { return false };
    if let Ok((dev, ino)) = sys::fd::identity(fd) {
        IDENTITY[0].store(dev, Relaxed);
        IDENTITY[1].store(ino, Relaxed);
    }
    FD.store(sys::fd::note_own(fd), Relaxed);
    let _ = tracing::subscriber::set_global_default(Writer(levels));
    true
}

/// The descriptor of the log, or -1.
pub fn descriptor() -> i32 {
    FD.load(Relaxed)
}

/// One line on stderr, whatever SMCR_LOG says: for malformed settings, and where `strict` refuses.
pub fn complain(what: fmt::Arguments) {
    let mut line = Line::new();
    let _ = write!(line, "smcr: {what}");
    line.write_to(2);
}

struct Writer(Levels);

impl Subscriber for Writer {
    fn register_callsite(&self, m: &'static Metadata<'static>) -> Interest {
        if self.enabled(m) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, m: &Metadata<'_>) -> bool {
        *m.level() <= self.0.of(m.target())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0.most())
    }

    fn event(&self, event: &Event<'_>) {
        let fd = FD.load(Relaxed);
        // The program may have closed our descriptor and got its number for a file of its own.
        let is_same = || {
            let identity = (IDENTITY[0].load(Relaxed), IDENTITY[1].load(Relaxed));
            sys::fd::identity(fd).is_ok_and(|id| id == identity)
        };
        let Some(held) = sys::held::hold(fd, is_same) else { return };
        let mut line = Line::new();
        let m = event.metadata();
        let _ = write!(line, "smcr[{}] {} {}:", proc::pid(), m.level(), m.target());
        event.record(&mut line);
        line.write_to(held.fd());
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Line {
    buf: [u8; 512],
    len: usize,
}

impl Line {
    fn new() -> Line {
        Line { buf: [0; 512], len: 0 }
    }

    fn write_to(&mut self, fd: i32) {
        self.buf[self.len] = b'\n';
        let _ = sys::fd::write_all(fd, &self.buf[..=self.len]);
    }
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.buf.len() - 1 - self.len;
        let n = s.len().min(room);
        self.buf[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self, " {value:?}"),
            name => write!(self, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, target: &str) -> Option<LevelFilter> {
        Levels::parse(text).map(|l| l.of(target))
    }

    #[test]
    fn a_level_for_all() {
        for (text, level) in [("off", LevelFilter::OFF), ("error", LevelFilter::ERROR), ("warn", LevelFilter::WARN), ("trace", LevelFilter::TRACE)] {
            assert_eq!(of(text, "smcr::switch"), Some(level));
            assert_eq!(Levels::parse(text).map(|l| l.most()), Some(level));
        }
        assert_eq!(of("", "smcr::switch"), Some(LevelFilter::OFF));
        assert_eq!(of(" INFO , ", "smcr::switch"), Some(LevelFilter::INFO));
    }

    #[test]
    fn levels_for_targets() {
        let text = "smcr::switch=trace,warn";
        assert_eq!((of(text, "smcr::switch"), of(text, "smcr::link")), (Some(LevelFilter::TRACE), Some(LevelFilter::WARN)));
        let alone = "smcr::switch=debug";
        assert_eq!((of(alone, "smcr::switch"), of(alone, "smcr::link")), (Some(LevelFilter::DEBUG), Some(LevelFilter::OFF)));
        assert_eq!(Levels::parse(alone).map(|l| l.most()), Some(LevelFilter::DEBUG));
        // The longest name decides, wherever it stands.
        for text in ["smcr=error,smcr::switch=off,debug", "debug,smcr::switch=off,smcr=error"] {
            let seen = ["smcr::switch", "smcr::peer", "x"].map(|target| of(text, target));
            assert_eq!(seen, [LevelFilter::OFF, LevelFilter::ERROR, LevelFilter::DEBUG].map(Some));
        }
    }

    #[test]
    fn what_is_not_understood() {
        let nine = ["smcr::a=info"; TARGETS + 1].join(",");
        assert!(Levels::parse(&nine["smcr::a=info,".len()..]).is_some());
        for text in
            ["loud", "6", "info,smcr::switch", "smcr::switch=loud", "=debug", "smcr::switch=debug=info", "smcr::more_than_24_letters=info", &nine]
        {
            assert!(Levels::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_line_is_cut_and_ends() {
        let mut line = Line::new();
        let _ = write!(line, "{}", "x".repeat(1000));
        assert_eq!((line.len, line.buf.len()), (511, 512));
    }
}
