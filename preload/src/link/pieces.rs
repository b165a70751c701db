//! Which pieces of the sending ring go where in the peer's: the writes of one message.
//!
//! Used by [`super::slot`] when it sends.

use super::pool::Element;
use crate::verbs::qp::{WRITES, Write};
use smcr_proto::smc::conn::Conn;

/// Takes as much of the stream as the peer has room for, as writes: cut where its ring ends and where
/// ours does.
pub(super) fn take_bytes(conn: &mut Conn, from: u64, left: u64, urgent: Option<u64>, ring: (Element, u32, u32), out: &mut [Write; WRITES]) -> usize {
    // No more than one round of the smaller ring, so that at most four pieces come out.
    let most = left.min(u64::from(ring.1)) as u32;
    let up_to = urgent.filter(|at| *at > from).map_or(most, |at| most.min((at - from) as u32));
    let Ok(segments) = conn.write(up_to, urgent == Some(from + u64::from(up_to))) else { return 0 };
    let (mut n, mut at) = (0, from);
    for segment in segments.iter() {
        let Some((to, rkey)) = conn.remote(*segment) else { return n };
        let mut done = 0;
        while done < segment.len && n < WRITES {
            let offset = (at % u64::from(ring.1)) as u32;
            let len = (segment.len - done).min(ring.1 - offset);
            out[n] = Write { from: ring.0.start as u64 + u64::from(offset), len, lkey: ring.2, to: to + u64::from(done), rkey: rkey.0 };
            n += 1;
            done += len;
            at += u64::from(len);
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use super::super::pool::Pool;
    use super::super::slot::token;
    use super::*;
    use smcr_proto::smc::clc::accept::Endpoint;
    use smcr_proto::smc::id::{Gid, Mac, Mtu, PeerId, Psn, Qpn, Rkey, RmbeIndex, RmbeSize};

    const RING: u32 = 16 << 10;

    /// A connection whose peer has a ring of this size at address 1 MiB, second element.
    fn connected(size: RmbeSize) -> Conn {
        let mut conn = Conn::new(token(0, 1).unwrap(), RmbeSize::MIN);
        let peer = Endpoint {
            peer_id: PeerId([1; 8]),
            gid: Gid::from_ipv4([10, 0, 0, 1]),
            mac: Mac([2; 6]),
            qpn: Qpn::truncate(3),
            psn: Psn::truncate(4),
            mtu: Mtu::B1024,
            rkey: Rkey(5),
            rmb_address: 1 << 20,
            index: RmbeIndex::new(2).unwrap(),
            token: token(7, 1).unwrap(),
            size,
        };
        conn.activate(&peer).unwrap();
        conn
    }

    #[test]
    fn writes_are_cut_where_either_ring_ends() {
        let mut pool = Pool::new(RING as usize, false);
        let ring = (pool.take().unwrap(), RING, 9);
        let mut conn = connected(RmbeSize::from_code(1).unwrap());
        let theirs = (1u64 << 20) + 2 * u64::from(RING);
        let mut pos = 0u64;
        for step in [10_000u64, 16_000, 6_768] {
            let mut writes = [Write::default(); WRITES];
            let n = take_bytes(&mut conn, pos, step, None, ring, &mut writes);
            let mut at = pos;
            for w in &writes[..n] {
                let own = at % u64::from(RING);
                assert_eq!(w.from, ring.0.start as u64 + own);
                assert_eq!(w.to, theirs + at % u64::from(2 * RING));
                assert!(own + u64::from(w.len) <= u64::from(RING));
                assert_eq!((w.lkey, w.rkey), (9, 5));
                at += u64::from(w.len);
            }
            assert_eq!(at, pos + step, "nothing is left out");
            pos = at;
        }
        let mut writes = [Write::default(); WRITES];
        assert_eq!(take_bytes(&mut conn, pos, 1, None, ring, &mut writes), 0, "the peer's ring is full");
    }
}
