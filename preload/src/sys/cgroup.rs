//! How much memory the control groups of this process allow it. What the library shares with peers counts
//! against that, and a group that is full kills.
//!
//! Called by `config`, once for a process, before its first connection moves.

use super::fd;
use std::ffi::CStr;

/// The longest path that is looked at.
const LONGEST: usize = 512;

/// The tightest limit of the groups that we are in and of those above them; None: none is known.
pub fn memory_limit() -> Option<u64> {
    let mut buf = [0u8; 4096];
    let groups = fd::read_file(c"/proc/self/cgroup", &mut buf).ok()?;
    let mut least = None;
    for (kinds, group) in groups.split(|b| *b == b'\n').filter_map(parse_line) {
        if kinds.is_empty() {
            // In the hybrid layout version 2 lies beside version 1.
            for root in [&b"/sys/fs/cgroup"[..], b"/sys/fs/cgroup/unified"] {
                walk(root, b"", group, b"/memory.max", &mut least);
            }
        } else if kinds.split(|b| *b == b',').any(|kind| kind == b"memory") {
            walk(b"/sys/fs/cgroup/", kinds, group, b"/memory.limit_in_bytes", &mut least);
        }
    }
    least
}

/// Controllers and path of a line "ID:CONTROLLERS:PATH".
fn parse_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = line.splitn(3, |b| *b == b':').skip(1);
    Some((parts.next()?, parts.next()?))
}

/// Looks at a group and those above it. In a container the group may be shown as the root.
fn walk(root: &[u8], kinds: &[u8], group: &[u8], file: &[u8], least: &mut Option<u64>) {
    let mut group = group.strip_suffix(b"/").unwrap_or(group);
    loop {
        let mut buf = [0u8; 32];
        let number = join([root, kinds, group, file]).and_then(|path| parse(fd::read_file(CStr::from_bytes_until_nul(&path).ok()?, &mut buf).ok()?));
        *least = number.into_iter().chain(*least).min();
        match group.iter().rposition(|b| *b == b'/') {
            Some(above) => group = &group[..above],
            None => return,
        }
    }
}

/// The parts one behind the other, NUL-terminated.
fn join(parts: [&[u8]; 4]) -> Option<[u8; LONGEST]> {
    let mut path = [0; LONGEST];
    let mut end = 0;
    for part in parts {
        path.get_mut(end..end + part.len())?.copy_from_slice(part);
        end += part.len();
    }
    (end < LONGEST).then_some(path)
}

/// A number of bytes; "max", and numbers near the largest, say that there is no limit.
fn parse(text: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    (number < 1 << 60).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_numbers() {
        assert_eq!(parse_line(b"0::/a/b"), Some((&b""[..], &b"/a/b"[..])));
        assert_eq!(parse_line(b"4:cpu,memory:/x:y"), Some((&b"cpu,memory"[..], &b"/x:y"[..])));
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse(b"1048576\n"), Some(1 << 20));
        assert_eq!(parse(b"max\n"), None);
        assert_eq!(parse(b"9223372036854771712\n"), None);
        assert_eq!(parse(b"-1\n"), None);
        assert!(join([&[b'a'; 300], b"", &[b'b'; 300], b""]).is_none());
        assert!(join([b"/", b"", &[b'b'; LONGEST - 1], b""]).is_none());
    }

    #[test]
    fn groups_above_are_looked_at_too() {
        let dir = std::env::temp_dir().join(format!("smcr-cgroup-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("a/b")).expect("a directory");
        std::fs::write(dir.join("a/limit"), "1000\n").expect("a file");
        std::fs::write(dir.join("a/b/limit"), "max\n").expect("a file");
        let mut least = None;
        let root = dir.to_str().expect("a path").as_bytes();
        walk(root, b"", b"/a/b", b"/limit", &mut least);
        assert_eq!(least, Some(1000));
        std::fs::write(dir.join("limit"), "700\n").expect("a file");
        walk(root, b"", b"/", b"/limit", &mut least);
        assert_eq!(least, Some(700));
        std::fs::remove_dir_all(dir).expect("nothing is left");
    }
}
