//! Lines of the kernel's text files, as they are read: nothing is allocated, and a buffer holds what was read last.
//!
//! Called by [`super::tcp_table`], [`super::users`], [`super::epoll_list`] and [`super::proc`].

use super::few::Brief;
use super::{Errno, Res, fd};
use std::ffi::CStr;

/// What `f` says of the first line, or of the first bytes of one that is long, of which it says something. None: it says nothing of any.
/// An error: what has not been read is not known.
pub fn find_in<T>(path: &CStr, f: impl FnMut(&[u8]) -> Option<T>) -> Res<Option<T>> {
    let file = Brief::open(|| fd::open_read(path))?;
    // SAFETY: the slice is valid for writes.
    find(|buf| unsafe { fd::read(file.fd(), buf.as_mut_ptr(), buf.len()) }, f)
}

/// The same of what the kernel tells of a descriptor of this process (/proc/self/fdinfo).
pub fn find_of<T>(number: i32, f: impl FnMut(&[u8]) -> Option<T>) -> Res<Option<T>> {
    let mut path = [0; 48];
    let path = fd::path(&mut path, format_args!("/proc/self/fdinfo/{number}\0")).ok_or(Errno(libc::ENAMETOOLONG))?;
    find_in(path, f)
}

/// The same of what `read` gives, as read(2) does.
pub fn find<T>(mut read: impl FnMut(&mut [u8]) -> Res, mut f: impl FnMut(&[u8]) -> Option<T>) -> Res<Option<T>> {
    let mut buf = [0u8; 4096];
    let (mut filled, mut is_inside) = (0, false);
    loop {
        match read(&mut buf[filled..])? {
            0 => return Ok(None),
            n => filled += n,
        }
        let mut from = 0;
        while let Some(end) = buf[from..filled].iter().position(|b| *b == b'\n') {
            let is_rest = std::mem::take(&mut is_inside);
            if let Some(found) = (!is_rest).then(|| f(&buf[from..from + end])).flatten() {
                return Ok(Some(found));
            }
            from += end + 1;
        }
        buf.copy_within(from..filled, 0);
        filled -= from;
        if filled == buf.len() {
            if let Some(found) = (!is_inside).then(|| f(&buf)).flatten() {
                return Ok(Some(found));
            }
            (filled, is_inside) = (0, true); // its rest is passed over
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_seen_once_and_a_long_one_by_its_beginning() {
        let text = [b"a\nbc\n".to_vec(), vec![b'x'; 9000], b"\nd\nno end".to_vec()].concat();
        for size in [1, 3, 4096] {
            let (mut left, mut seen) = (&text[..], Vec::new());
            let read = |buf: &mut [u8]| {
                let n = left.len().min(size).min(buf.len());
                buf[..n].copy_from_slice(&left[..n]);
                left = &left[n..];
                Ok(n)
            };
            let found = find(read, |line| {
                seen.push(line.len());
                None::<()>
            });
            assert_eq!((found, seen), (Ok(None), vec![1, 2, 4096, 1]));
        }
        assert!(find_in(c"/proc/self/no-such", |_| Some(())).is_err());
    }
}
