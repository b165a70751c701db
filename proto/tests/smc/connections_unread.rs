//! Closing with bytes unread.

use smcr_proto::smc::cdc::{Cdc, ConnFlags};
use smcr_proto::smc::conn::State;

use crate::connections::{conn, message, polled};

#[test]
fn close_with_unread_data_is_an_abort() {
    let mut conn = conn();
    conn.handle_cdc(&message(1, 1, 0)).unwrap();
    conn.close();
    assert_eq!(polled(&mut conn).unwrap().conn_flags, ConnFlags::ABORTED);
    assert_eq!(conn.state(), State::PeerCloseWait1);
    let bye = Cdc { conn_flags: ConnFlags::CLOSED, ..message(2, 1, 0) };
    conn.handle_cdc(&bye).unwrap();
    assert!(conn.is_finished());
}

#[test]
fn unread_data_aborts_nothing_where_both_had_ended_before() {
    let done = |sequence, at| Cdc { conn_flags: ConnFlags::DONE_WRITING, ..message(sequence, at, 0) };
    let both = ConnFlags::DONE_WRITING | ConnFlags::CLOSED;
    for first in [true, false] {
        let mut conn = conn();
        if first {
            conn.shutdown();
        }
        conn.handle_cdc(&done(1, 5)).unwrap();
        conn.shutdown();
        conn.close_ended();
        assert_eq!(polled(&mut conn).unwrap().conn_flags, both, "whichever came first");
    }
    // The peer had not, as this machine knows it.
    let mut conn = conn();
    conn.handle_cdc(&message(1, 5, 0)).unwrap();
    conn.shutdown();
    conn.close_ended();
    assert!(polled(&mut conn).unwrap().conn_flags.contains(ConnFlags::ABORTED));
}
