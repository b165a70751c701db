//! The close handshake of a connection as a table of states.
//!
//! Both ends walk it by the flags of CDC messages (RFC 7609 section 4, Linux
//! `net/smc/smc_close.c`). Pure functions; [`super::Conn`] keeps the state and sends the flags.

use crate::smc::cdc::ConnFlags;

/// The state of a connection; numbers and names are those of Linux (`smcss`, smc_diag).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// Both directions open.
    Active = 1,
    /// This end's ring is known to the peer, the peer's not yet to this end.
    Init = 2,
    /// Over.
    Closed = 7,
    /// This end is done writing or closed; nothing from the peer yet.
    PeerCloseWait1 = 20,
    /// As above, and the peer is done writing.
    PeerCloseWait2 = 21,
    /// The peer is done writing or closed; this end still writes.
    AppCloseWait1 = 22,
    /// As above, and this end is done writing.
    AppCloseWait2 = 23,
    /// The peer closed after this end was done writing; close() is missing.
    AppFinCloseWait = 24,
    /// This end closed after the peer was done writing; its close is missing.
    PeerFinCloseWait = 25,
    /// The link died; close() is missing.
    PeerAbortWait = 26,
    /// The peer aborted, or broke the rules; close() is missing.
    ProcessAbort = 27,
}

/// What close() has to tell the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Farewell {
    /// Nothing.
    None,
    /// Closed, or aborted if received data was left unread.
    Close,
    /// Aborted.
    Abort,
}

impl State {
    /// The state after shutdown for writing, and whether the peer is told.
    pub(super) fn on_shutdown(self) -> (State, bool) {
        match self {
            State::Active => (State::PeerCloseWait1, true),
            State::AppCloseWait1 => (State::AppCloseWait2, true),
            other => (other, false),
        }
    }

    /// The state after close(), with the flags that both ends have sent so far.
    pub(super) fn on_close(self, local: ConnFlags, remote: ConnFlags) -> (State, Farewell) {
        let only_done_writing = !local.intersects(ConnFlags::ANY_CLOSE);
        let if_only_done = if only_done_writing { Farewell::Close } else { Farewell::None };
        match self {
            State::Active => (State::PeerCloseWait1, Farewell::Close),
            State::PeerCloseWait1 | State::PeerCloseWait2 => (self, if_only_done),
            State::AppCloseWait1 | State::AppCloseWait2 => {
                let peer_gone = remote.intersects(ConnFlags::ANY_CLOSE);
                let next = if peer_gone { State::Closed } else { State::PeerFinCloseWait };
                (next, Farewell::Close)
            }
            State::AppFinCloseWait => (State::Closed, if_only_done),
            State::ProcessAbort => (State::Closed, Farewell::Abort),
            State::Init | State::PeerAbortWait => (State::Closed, Farewell::None),
            State::PeerFinCloseWait | State::Closed => (self, Farewell::None),
        }
    }

    /// The state after a message with these flags of the peer.
    pub(super) fn on_peer(self, local: ConnFlags, remote: ConnFlags) -> State {
        if remote.contains(ConnFlags::ABORTED) {
            return self.on_abort(local);
        }
        let peer_gone = remote.contains(ConnFlags::CLOSED);
        match self {
            _ if remote.is_empty() => self,
            State::Init | State::Active => State::AppCloseWait1,
            State::PeerCloseWait1 | State::PeerCloseWait2 if peer_gone => {
                let said_so = local.intersects(ConnFlags::ANY_CLOSE);
                if said_so { State::Closed } else { State::AppFinCloseWait }
            }
            State::PeerCloseWait1 => State::PeerCloseWait2,
            State::PeerFinCloseWait if peer_gone => State::Closed,
            other => other,
        }
    }

    fn on_abort(self, local: ConnFlags) -> State {
        match self {
            State::Init | State::Active | State::AppCloseWait1 | State::AppFinCloseWait => State::ProcessAbort,
            State::PeerCloseWait1 | State::PeerCloseWait2 => {
                let said_so = local.intersects(ConnFlags::ANY_CLOSE);
                if said_so { State::Closed } else { State::ProcessAbort }
            }
            State::AppCloseWait2 | State::PeerFinCloseWait | State::PeerAbortWait => State::Closed,
            State::ProcessAbort | State::Closed => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: ConnFlags = ConnFlags::empty();
    const DW: ConnFlags = ConnFlags::DONE_WRITING;
    const CL: ConnFlags = ConnFlags::CLOSED;
    const AB: ConnFlags = ConnFlags::ABORTED;

    /// Each row: state; after shutdown; after close with only DW sent; after DW, CL, AB of the peer
    /// with only DW sent.
    #[test]
    fn the_table_of_linux() {
        use State::*;
        #[rustfmt::skip]
        let rows = [
            (Active,           PeerCloseWait1,   PeerCloseWait1,   AppCloseWait1,    AppCloseWait1,    ProcessAbort),
            (PeerCloseWait1,   PeerCloseWait1,   PeerCloseWait1,   PeerCloseWait2,   AppFinCloseWait,  ProcessAbort),
            (PeerCloseWait2,   PeerCloseWait2,   PeerCloseWait2,   PeerCloseWait2,   AppFinCloseWait,  ProcessAbort),
            (AppCloseWait1,    AppCloseWait2,    PeerFinCloseWait, AppCloseWait1,    AppCloseWait1,    ProcessAbort),
            (AppCloseWait2,    AppCloseWait2,    PeerFinCloseWait, AppCloseWait2,    AppCloseWait2,    Closed),
            (PeerFinCloseWait, PeerFinCloseWait, PeerFinCloseWait, PeerFinCloseWait, Closed,           Closed),
            (AppFinCloseWait,  AppFinCloseWait,  Closed,           AppFinCloseWait,  AppFinCloseWait,  ProcessAbort),
            (ProcessAbort,     ProcessAbort,     Closed,           ProcessAbort,     ProcessAbort,     ProcessAbort),
            (PeerAbortWait,    PeerAbortWait,    Closed,           PeerAbortWait,    PeerAbortWait,    Closed),
            (Init,             Init,             Closed,           AppCloseWait1,    AppCloseWait1,    ProcessAbort),
            (Closed,           Closed,           Closed,           Closed,           Closed,           Closed),
        ];
        for (state, shutdown, close, dw, cl, ab) in rows {
            assert_eq!(state.on_shutdown().0, shutdown, "{state:?} shutdown");
            assert_eq!(state.on_close(DW, NONE).0, close, "{state:?} close");
            assert_eq!(state.on_peer(DW, DW), dw, "{state:?} peer done writing");
            assert_eq!(state.on_peer(DW, CL), cl, "{state:?} peer closed");
            assert_eq!(state.on_peer(DW, AB), ab, "{state:?} peer aborted");
        }
    }

    #[test]
    fn an_end_that_said_closed_is_done_when_the_peer_says_it() {
        assert_eq!(State::PeerCloseWait1.on_peer(CL, CL), State::Closed);
        assert_eq!(State::PeerCloseWait2.on_peer(CL, AB), State::Closed);
        assert_eq!(State::AppCloseWait1.on_close(NONE, CL), (State::Closed, Farewell::Close));
    }

    #[test]
    fn close_is_said_once() {
        assert_eq!(State::PeerCloseWait1.on_close(DW, NONE).1, Farewell::Close);
        assert_eq!(State::PeerCloseWait1.on_close(DW | CL, NONE).1, Farewell::None);
        assert_eq!(State::ProcessAbort.on_close(NONE, AB).1, Farewell::Abort);
    }
}
