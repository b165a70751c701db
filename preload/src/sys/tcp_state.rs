//! The state of a TCP socket, as TCP_INFO tells it (the first byte; numbers of linux/tcp_states.h). Called by `sys::unpolled`, `engine` and
//! `rendezvous::mark`.

use super::{Res, net};

pub const ESTABLISHED: u8 = 1;
pub const FIN_WAIT1: u8 = 4;
pub const FIN_WAIT2: u8 = 5;
pub const TIME_WAIT: u8 = 6;
pub const CLOSE: u8 = 7;
pub const CLOSE_WAIT: u8 = 8;
pub const LAST_ACK: u8 = 9;
pub const CLOSING: u8 = 11;

pub fn of(sock: i32) -> Res<u8> {
    net::get_opt(sock, libc::IPPROTO_TCP, libc::TCP_INFO)
}

/// Whether both ends have met, and it was not reset.
pub fn is_connected(state: u8) -> bool {
    is_peer_open(state) || has_ended(state) || state == CLOSE_WAIT
}

/// Whether its own end has sent its last byte. Not told of one that is closed both ways: it may have been reset.
pub fn has_ended(state: u8) -> bool {
    matches!(state, FIN_WAIT1 | FIN_WAIT2 | TIME_WAIT | LAST_ACK | CLOSING)
}

/// Whether the peer has not ended.
pub fn is_peer_open(state: u8) -> bool {
    matches!(state, ESTABLISHED | FIN_WAIT1 | FIN_WAIT2)
}

/// The same of a socket, as far as it can be asked.
pub fn has_open_peer(sock: i32) -> bool {
    of(sock).is_ok_and(is_peer_open)
}
