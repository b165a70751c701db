//! sendfile and splice with a tracked socket at either end. What the kernel refuses is left to it: only a call that it would
//! carry out is served here.

use super::{cancel, direct, hooks, one};
use crate::engine::{end, inside, peek, pipes, rx};
use crate::family::sock::Sock;
use crate::sys::probe::is_null_or_there;
use crate::sys::{self, Errno, fd as desc, net, set_errno};
use crate::{control, real, table};
use libc::{c_int, c_uint, off_t, size_t, ssize_t};

/// All that splice(2) knows.
const FLAGS: c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// Most that goes from a socket into a pipe at once.
const MOST: usize = 16 * 1024;
/// What fits into a pipe that is not full, whatever is in it. Each write may need pages of its own.
const PAGE: usize = 4096;

hooks! {
    fn sendfile(out: c_int, file: c_int, off: *mut off_t, n: size_t) -> ssize_t {
        // SAFETY: the program's arguments.
        unsafe { sendfile64(out, file, off, n) }
    }

    fn sendfile64(out: c_int, file: c_int, off: *mut off_t, n: size_t) -> ssize_t {
        let moves = n > 0 && n <= isize::MAX as usize;
        if let Some(s) = table::sock(out)
            && moves
            && is_null_or_there(off)
            // Without an offset it has to have a position; with one the kernel says what is wrong when it is read.
            && (!off.is_null() || control::is_restricted() || desc::lseek(file, 0, libc::SEEK_CUR).is_ok())
        {
            // SAFETY: the program's arguments; its pointer is valid or null.
            return direct(|| unsafe {
                table::files::send_file(out, s, file, off.as_mut(), n, |out, left| real::sendfile64(out, file, off, left))
            });
        }
        if let Some(s) = table::sock(file)
            && moves
            && off.is_null()
            && table::sock(out).is_none()
            && let Some(pipe) = Pipe::to_write(out)
        {
            return direct(|| splice_out(file, s, &pipe, n, 0));
        }
        // SAFETY: the program's arguments.
        unsafe { real::sendfile64(out, file, off, n) }
    }

    fn splice(from: c_int, off_in: *mut i64, to: c_int, off_out: *mut i64, n: size_t, flags: c_uint) -> ssize_t {
        if n > 0 && flags & !FLAGS == 0 && off_in.is_null() && off_out.is_null() {
            if let Some(s) = table::sock(to)
                && Pipe::is_one(from)
            {
                cancel::point();
                // SAFETY: no offsets.
                return direct(|| table::files::splice_in(to, s, from, n, flags, |to| unsafe {
                    real::splice(from, off_in, to, off_out, n, flags)
                }));
            }
            if let Some(s) = table::sock(from)
                && let Some(pipe) = Pipe::to_write(to)
            {
                cancel::point();
                return direct(|| splice_out(from, s, &pipe, n, flags));
            }
        }
        // SAFETY: the program's arguments.
        unsafe { real::splice(from, off_in, to, off_out, n, flags) }
    }
}

/// A pipe that can be written to.
struct Pipe {
    fd: i32,
    size: usize,
    nonblock: bool,
}

impl Pipe {
    fn is_one(fd: i32) -> bool {
        control::is_restricted() || desc::fcntl(fd, libc::F_GETPIPE_SZ, 0).is_ok()
    }

    fn to_write(fd: i32) -> Option<Pipe> {
        let size = desc::fcntl(fd, libc::F_GETPIPE_SZ, 0).ok()?;
        let flags = desc::status_flags(fd).ok()?;
        let nonblock = flags & libc::O_NONBLOCK != 0;
        (flags & libc::O_ACCMODE != libc::O_RDONLY).then_some(Pipe { fd, size, nonblock })
    }

    /// How much it takes without a wait in one write: all if it is empty, else a page. What is taken from the socket can't be put
    /// back, so room is waited for first, as in the kernel.
    fn room(&self, nonblock: bool) -> Result<usize, Errno> {
        loop {
            let shows = if nonblock { desc::poll_now(self.fd, libc::POLLOUT) } else { pipes::wait(self.fd, libc::POLLOUT)? };
            match shows {
                r if r & libc::POLLERR != 0 => {
                    end::pipe_signal(0);
                    return Err(Errno(libc::EPIPE)); // nobody reads
                }
                r if r & libc::POLLOUT != 0 => {
                    return Ok(if desc::unread(self.fd) == Ok(0) { self.size } else { PAGE });
                }
                _ if nonblock => return Err(Errno(libc::EAGAIN)),
                _ => {}
            }
        }
    }
}

/// splice from a socket into a pipe: received into a buffer and written, as much as is there and the pipe takes.
fn splice_out(sock: i32, s: &'static Sock, pipe: &Pipe, n: usize, flags: u32) -> isize {
    // Closed meanwhile, the call goes on to its end, as in the kernel.
    let _visit = inside::visit(s, &n);
    let connection = s.connection();
    if !s.has(crate::family::sock::flag::CAREFUL) {
        let moved = crate::engine::from_tcp::through_kernel(s, false, || {
            // SAFETY: no offsets.
            unsafe { real::splice(sock, std::ptr::null_mut(), pipe.fd, std::ptr::null_mut(), n, flags) }
        });
        if let Some(r) = moved {
            if s.connection() != connection {
                return r;
            }
            table::sending::after_kernel(sock, s, r);
            if !crate::engine::from_tcp::is_end_in_doubt(s, r, n) {
                return r;
            }
        }
    }
    let mut room = match pipe.room(pipe.nonblock || flags & libc::SPLICE_F_NONBLOCK != 0) {
        Ok(room) => room,
        Err(e) => {
            set_errno(e);
            return -1;
        }
    };
    let sock = inside::descriptor(s, sock);
    let mut done = 0;
    loop {
        if done > 0 && s.connection() != connection {
            return done as isize;
        }
        // What is there already goes with it.
        let more = if done > 0 { libc::MSG_DONTWAIT } else { 0 };
        let moved = take_to(sock, s, pipe.fd, room.min(n - done), more);
        if moved <= 0 && done > 0 {
            if moved < 0 && sys::errno().0 != libc::EAGAIN {
                end::leave(s, sys::errno());
            }
            return done as isize;
        }
        if moved <= 0 {
            return moved;
        }
        done += moved as usize;
        room = room.saturating_sub((moved as usize).next_multiple_of(PAGE));
        if done >= n || room == 0 || !s.rx_in_memory() || !peek::unread(s, sock).is_ok_and(|left| left > 0) {
            return done as isize;
        }
    }
}

/// Receives a piece, and writes it to the pipe, which has room for it.
fn take_to(sock: i32, s: &'static Sock, pipe: i32, most: usize, flags: c_int) -> isize {
    let mut buf = [0u8; MOST];
    let want = most.min(buf.len());
    let iov = one(buf.as_mut_ptr().cast(), want);
    // The flag is for the pipe alone: a socket that is empty is waited for, as in the kernel, unless it has O_NONBLOCK.
    // SAFETY: the buffer is our own.
    let got = unsafe {
        table::receiving::recv(sock, s, &iov, rx::ANY | flags, None, || {
            net::recv_slice(sock, std::slice::from_raw_parts_mut(iov[0].iov_base.cast(), want), flags).map_or(-1, |n| n as isize)
        })
    };
    if got <= 0 {
        return got;
    }
    let mut done = 0;
    while done < got as usize {
        match desc::write_all(pipe, &buf[done..got as usize]) {
            Ok(w) => done += w,
            Err(e) if e.0 == libc::EAGAIN || e.0 == libc::EINTR => {
                let mut p = [libc::pollfd { fd: pipe, events: libc::POLLOUT, revents: 0 }];
                let _ = desc::poll(&mut p, -1);
            }
            Err(e) => {
                set_errno(e);
                return if done > 0 { done as isize } else { -1 };
            }
        }
    }
    done as isize
}
