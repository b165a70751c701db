//! The answer to a kernel's client that waits in a listener's queue, and what the program's stream is to know of it. Called by
//! [`super::backlog`], and where the connection is accepted.

use crate::family::sock::{Sock, flag};
use crate::link::lock::now;
use crate::sys::{Errno, fd, net};
use smcr_proto::handshake::{LEVEL, Peer, VERDICT, Verdict};
use smcr_proto::reason::Reason;
use smcr_proto::smc::Time;
use smcr_proto::smc::diagnosis::Diagnosis;
use smcr_proto::smc::handshake::server::Server;
use std::sync::atomic::Ordering::*;

/// How long a client's Proposal is waited for at most: it is on its way since the handshake, [`super::backlog`] waits longer.
const PROPOSAL: Time = Time::from_millis(10);
/// The same of all that are taken at once: accept() waits meanwhile, and the links of the process.
pub(super) const PROPOSALS: Time = Time::from_millis(200);

/// Declines where the client is a kernel; bytes of CLC received, and sent (upper half). None: nothing to be declined.
pub(super) fn decline(sock: i32, until: Time) -> Option<u64> {
    let verdict = Verdict(net::get_opt(sock, LEVEL, VERDICT).unwrap_or(0));
    (verdict.peer() == Some(Peer::Smc)).then(|| answer(sock, until))
}

/// Says no to a Proposal, if that comes in time; else it is left to who accepts the connection.
fn answer(sock: i32, until: Time) -> u64 {
    let (id, host) = super::shake::names();
    let mut machine = Server::new(now(), id, Err(Diagnosis::MEMORY), host);
    let (mut received, mut sent) = (0u64, 0u64);
    while machine.outcome().is_none() {
        if let Some(frame) = machine.poll_transmit() {
            sent += net::send_slice(sock, &frame, libc::MSG_DONTWAIT).unwrap_or(0) as u64;
            continue;
        }
        let mut buf = [0u8; 1024];
        let want = machine.want().min(buf.len());
        if want == 0 {
            break;
        }
        match net::recv_slice(sock, &mut buf[..want], libc::MSG_DONTWAIT) {
            Ok(n) if n > 0 => {
                received += n as u64;
                machine.handle_bytes(&buf[..n]);
            }
            Err(Errno(libc::EAGAIN)) => {
                let mut fds = [libc::pollfd { fd: sock, events: libc::POLLIN, revents: 0 }];
                // One that has come in part can't be left to anybody any more.
                let most = if received > 0 { PROPOSALS } else { PROPOSAL };
                let patience = until.saturating_sub(now()).min(most);
                if fd::poll(&mut fds, (patience.as_micros() / 1000) as i32).unwrap_or(0) == 0 {
                    machine.handle_eof();
                }
            }
            _ => machine.handle_eof(),
        }
    }
    received | sent << 32
}

/// A connection that was declined in the queue has been accepted.
pub fn was_declined(s: &Sock, clc: [u64; 2]) {
    if clc[1] > 0 {
        s.rx.kernel.store(clc[0], Relaxed);
        s.tx.kernel.store(clc[1], Relaxed);
        s.set(flag::NOBODY);
        s.clear(flag::UNASKED);
        s.note(Reason::NotAccepted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smcr_proto::smc::handshake::client::Client;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (ours, theirs)
    }

    #[test]
    fn those_that_say_nothing_are_not_waited_for_one_by_one() {
        let began = now();
        let silent: Vec<_> = (0..64).map(|_| pair()).collect();
        let said: Vec<u64> = silent.iter().map(|(ours, _)| answer(ours.as_raw_fd(), began + PROPOSALS)).collect();
        assert!(said.iter().all(|clc| *clc == 0));
        assert!(now().saturating_sub(began) < Time::from_secs(5));

        let (ours, mut theirs) = pair();
        let (id, host) = super::super::shake::names();
        let mut client = Client::refusing(id, Diagnosis::MEMORY, host);
        theirs.write_all(&client.poll_transmit().unwrap()).unwrap();
        assert_ne!(answer(ours.as_raw_fd(), began), 0, "what is there is answered");
    }
}
