//! What the kernel has registered in an epoll set, as text (/proc/self/fdinfo). A look costs with the number of members.
//!
//! Called by `ready::strays`.

use super::fd;
use super::few::Brief;

/// Whether the set has a member that was registered by this number with this data word. None: that is not to be known.
pub fn has(epfd: i32, number: i32, word: u64) -> Option<bool> {
    let mut path = [0; 48];
    let list = Brief::open(|| fd::open_read(fd::path(&mut path, format_args!("/proc/self/fdinfo/{epfd}\0")).unwrap_or_default())).ok()?;
    let mut buf = [0u8; 4096];
    let mut filled = 0;
    loop {
        let free = &mut buf[filled..];
        // SAFETY: the slice is valid for writes.
        match unsafe { fd::read(list.fd(), free.as_mut_ptr(), free.len()) }.ok()? {
            0 => return Some(false),
            n => filled += n,
        }
        let whole = buf[..filled].iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        if buf[..whole].split(|b| *b == b'\n').any(|line| of_line(line) == Some((number, word))) {
            return Some(true);
        }
        buf.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

/// "tfd: N events: HEX data: HEX ..."
fn of_line(line: &[u8]) -> Option<(i32, u64)> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    if words.next()? != "tfd:" {
        return None;
    }
    let number = words.next()?.parse().ok()?;
    words.find(|word| *word == "data:")?;
    Some((number, u64::from_str_radix(words.next()?, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{EPOLL_CTL_ADD, epoll_event};

    #[test]
    fn a_member_is_there_until_its_file_is_closed() {
        // SAFETY: no pointers.
        let epfd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let fds = [(); 100].map(|()| fd::eventfd().expect("an eventfd"));
        for fd in fds {
            fd::epoll_ctl(epfd, EPOLL_CTL_ADD, fd, Some(epoll_event { events: 1, u64: u64::MAX - fd as u64 })).expect("a member");
        }
        let is_there = |fd: i32| has(epfd, fd, u64::MAX - fd as u64);
        assert!(fds.into_iter().all(|fd| is_there(fd) == Some(true)));
        assert_eq!(has(epfd, fds[0], 7), Some(false));
        fd::close(fds[3]);
        assert_eq!((is_there(fds[3]), is_there(fds[4])), (Some(false), Some(true)));
        assert_eq!(has(-1, 0, 0), None);
        fds.into_iter().filter(|fd| *fd != fds[3]).chain([epfd]).for_each(fd::close);
    }
}
