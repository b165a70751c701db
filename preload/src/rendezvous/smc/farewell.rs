//! The process ends, or becomes another program: what becomes of its links.
//!
//! What was sent goes out and the peers hear of the end, where the kernel would do that for TCP only. Connections that relatives have
//! as well are theirs from then on, over TCP. Called by `table::forks`.

use super::{gate, service};
use crate::family;
use crate::link::lock::{self, now};
use crate::link::parting::Parting;
use crate::log;
use crate::sys::fd;
use smcr_proto::smc::Time;

/// How long the peers have for each step (Linux waits as long in close).
const PATIENCE_MS: u32 = 2000;
/// How long what was sent has to reach its peer, which TCP would see to after the end of the process: longer than a link takes to be given up, and than
/// any handshake lasts. A kernel's server that makes its first contacts one after the other may take 30 s for Accept, the greeting 2 s, the link
/// 4 s and a Decline 8 s.
const OWED_MS: u32 = 45_000;
/// How long messages of libsmcr to libsmcr are waited for at the end.
const QUIET_MS: u32 = 100;

/// Connections that a forked child, or another relative, has through our links return to TCP, where it goes on alone. With a kernel
/// there is no way back: they end with the link.
pub fn leave_to_relatives() {
    if !lock::is_used() {
        return;
    }
    // Of those that are gone nobody goes on.
    family::reap_dead();
    let leaves = || {
        let left = lock::with(|all| {
            all.poll();
            all.leave_to_relatives()
        });
        left == Some(true)
    };
    if !gate::wait(super::PATIENCE_BARE_MS, leaves) {
        log::warn!(target: "smcr::link", "a peer is silent: relatives lose the connections that they have through our links");
    }
}

/// The process ends.
pub fn at_exit() {
    if !lock::is_used() && !service::is_running() {
        return;
    }
    // What has been sent before its handshake is over.
    if !gate::wait(OWED_MS, || lock::with(|all| all.owes_handshake()) == Some(true)) {
        log::warn!(target: "smcr::link", "the process ends in a handshake: what it has sent is lost");
    }
    leave_to_relatives();
    close_all();
    lock::with(|all| all.end_all());
    say_it();
}

fn close_all() {
    let (began, mut first) = (now(), true);
    loop {
        let parting = lock::with(|all| {
            all.poll();
            all.close_all(first)
        });
        if !first {
            let patience = match parting {
                None | Some(Parting::Quiet) => 0,
                Some(Parting::Unanswered) => PATIENCE_MS,
                Some(Parting::Owed) => OWED_MS,
            };
            if now().saturating_sub(began) >= Time::from_millis(patience.into()) {
                if parting == Some(Parting::Owed) {
                    log::warn!(target: "smcr::link", "a peer takes nothing: what the process has sent it is lost");
                }
                return;
            }
            let _ = fd::poll(&mut [], 1);
        }
        first = false;
    }
}

fn say_it() {
    let mut waited = false;
    for round in 0..PATIENCE_MS {
        let (quiet, awaits) = lock::with(|all| {
            all.poll();
            let groups = || all.groups.iter().flatten();
            (groups().all(|g| g.is_quiet()), groups().any(|g| g.awaits_farewell()))
        })
        .unwrap_or((true, false));
        if !awaits && (quiet || round >= QUIET_MS) {
            break;
        }
        waited |= awaits;
        let _ = fd::poll(&mut [], 1);
    }
    if waited {
        // The card has yet to say that the last message has arrived.
        let _ = fd::poll(&mut [], 5);
    }
}
