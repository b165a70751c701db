//! What the kernel has registered in an epoll set, as text (/proc/self/fdinfo). A look costs with the number of members.
//!
//! Called by `ready::strays`.

use super::lines;

/// Whether the set has a member that was registered by this number with this data word. None: that is not to be known.
pub fn has(epfd: i32, number: i32, word: u64) -> Option<bool> {
    let found = lines::find_of(epfd, |line| (of_line(line) == Some((number, word))).then_some(()));
    found.ok().map(|it| it.is_some())
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
    use crate::sys::fd;
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
