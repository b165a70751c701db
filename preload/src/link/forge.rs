//! A hostile peer on a real link, for tests: what `SMCR_FORGE` says is sent once, by the first connection that has
//! sent 20,000 bytes. Only in the build with the feature `faults`; called by [`super::state`], [`super::one`] and the handshake.
//! The cases are `tests/lab/cases_hostile.py`.
//!
//! Commands with `;` between them. A number with a sign counts from what is right, one without is taken as it is (hexadecimal).
//!
//! | | |
//! |---|---|
//! | `send HEX` | a message; O, P: keys of the own and of the peer's memory |
//! | `long N` | a message of N bytes |
//! | `cdc SEQ TOKEN PRODUCER CONSUMER FLAGS FLAGS` | a message of the connection; cursors in bytes |
//! | `raw SEQ WRAP COUNT WRAP COUNT FLAGS FLAGS` | the same with cursors as they stand |
//! | `imm LEN NAME CONSUMED [SEQ]` | a write that announces itself, with the next number, or one that is so far from it |
//! | `rdma OPCODE KEY ADDRESS LEN` | bytes ee to, or from, any place |
//! | `times N COMMAND` | N times |
//! | `show` | says what the peer's end is called |

use super::one::Link;
use super::state::State;
use crate::fault;
use crate::sys::fd;
use smcr_proto::smc::cdc::{Cdc, ConnFlags, ProducerFlags};
use smcr_proto::smc::clc::accept::Endpoint;
use smcr_proto::smc::cursor::Cursor;
use smcr_proto::smc::id::Token;
use smcr_proto::smc::immediate::{self, Immediate};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Peers' ends, by connection.
static MET: Mutex<Vec<(u32, Endpoint)>> = Mutex::new(Vec::new());
/// Forged writes that had a number.
static NUMBERED: AtomicU32 = AtomicU32::new(0);
/// Bytes of a connection before it begins.
const AFTER: u64 = 20_000;

/// A connection has a peer.
pub fn met(index: u32, peer: &Endpoint) {
    if let Ok(mut all) = MET.lock() {
        all.retain(|(i, _)| *i != index);
        all.push((index, *peer));
    }
}

/// A forged request has completed.
pub fn completed(status: u32) {
    say(&format!("completed {status}"));
}

/// Before a connection sends.
pub fn look(all: &mut State, index: u32) {
    let Some(slot) = all.slot(index).filter(|s| s.active && s.pumped >= AFTER && s.group.is_some()) else { return };
    if slot.is_leaving() {
        return;
    }
    let Some(plan) = fault::forgery() else { return };
    let peer = MET.lock().ok().and_then(|m| m.iter().find(|(i, _)| *i == index).map(|(_, e)| *e));
    let Some(peer) = peer else { return };
    for command in plan.split(';') {
        let mut words: Vec<&str> = command.split_whitespace().collect();
        let mut times = 1;
        if let ["times", n, ..] = words[..] {
            times = n.parse().unwrap_or(1);
            words.drain(..2);
        }
        for _ in 0..times {
            if !one(all, index, &peer, &words) {
                say(&format!("refused: {command}"));
                break;
            }
        }
    }
    say("done");
}

fn say(text: &str) {
    let _ = fd::write_all(2, format!("forge: {text}\n").as_bytes());
}

/// A number of the plan: from `base` on, or by itself.
fn number(text: &str, base: u64) -> u64 {
    let value = |t: &str| t.parse::<i64>().unwrap_or(0);
    match text.as_bytes().first() {
        Some(b'+' | b'-') => base.wrapping_add_signed(value(text)),
        _ => u64::from_str_radix(text, 16).unwrap_or(0),
    }
}

fn one(all: &mut State, index: u32, peer: &Endpoint, words: &[&str]) -> bool {
    let Some(slot) = all.slot(index) else { return false };
    let (Some(place), Some(rx), link) = (slot.group, slot.rx, slot.link) else { return false };
    let Some(conn) = &slot.conn else { return false };
    let (sent, (_, consumed), last) = (conn.sent_bytes().0, conn.received_bytes(), conn.last_number());
    let Some(Some(group)) = all.groups.get_mut(place) else { return false };
    let (size, own_size) = (peer.size.bytes(), group.size.bytes());
    let own = group.links[link].domain().and_then(|d| group.rings.keys(rx, d)).map_or(0, |k| k.rkey.0);
    let sequence = |text: &str| number(text, u64::from(last)) as u16;
    let flags = |p: &str, c: &str| (ProducerFlags::from_bits_retain(number(p, 0) as u8), ConnFlags::from_bits_retain(number(c, 0) as u8));
    let token = |text: &str| Token::new(number(text, u64::from(peer.token.value())) as u32).ok();
    let write = |from: Vec<u8>| Forged { opcode: 2, bytes: from, len: 0, to: 0, rkey: 0, imm: 0 };
    let forged = match words {
        ["show"] => {
            say(&format!("token {:x} key {:x} ring {:x} size {size:x}", peer.token.value(), peer.rkey.0, ring(peer)));
            return true;
        }
        ["send", hex] => write(bytes(hex, own, peer.rkey.0)),
        ["long", n] => Forged { len: number(n, 0) as u32, ..write(Vec::new()) },
        ["cdc", seq, name, producer, consumer, p, c] => {
            let Some(token) = token(name) else { return false };
            let (producer_flags, conn_flags) = flags(p, c);
            let at = |text: &str, from: u64, size: u32| Cursor::at(number(text, from), size);
            let (producer, consumer) = (at(producer, sent, size), at(consumer, consumed, own_size));
            let cdc = Cdc { sequence: sequence(seq), token, producer, consumer, producer_flags, conn_flags };
            write(cdc.emit().to_vec())
        }
        ["raw", seq, pw, pc, cw, cc, p, c] => {
            let cursor = |w: &str, c: &str| Cursor { wrap: number(w, 0) as u16, count: number(c, 0) as u32 };
            let (producer_flags, conn_flags) = flags(p, c);
            let (producer, consumer) = (cursor(pw, pc), cursor(cw, cc));
            let cdc = Cdc { sequence: sequence(seq), token: peer.token, producer, consumer, producer_flags, conn_flags };
            write(cdc.emit().to_vec())
        }
        ["imm", len, name, read, rest @ ..] => {
            let name = number(name, u64::from(immediate::name(peer.token))) as u16;
            let imm =
                Immediate { name, sequence: rest.first().map_or(last, |at| sequence(at)) as u8, consumed: number(read, consumed) as u16 }.emit();
            let at = ring(peer) + sent % u64::from(size);
            Forged { opcode: 1, bytes: Vec::new(), len: number(len, 0) as u32, to: at, rkey: peer.rkey.0, imm }
        }
        ["rdma", opcode, key, address, len] => {
            let (to, rkey) = (number(address, ring(peer)), number(key, u64::from(peer.rkey.0)) as u32);
            Forged { opcode: number(opcode, 0) as u32, bytes: Vec::new(), len: number(len, 0) as u32, to, rkey, imm: 0 }
        }
        _ => return false,
    };
    post(all, (place, link), &forged)
}

fn ring(peer: &Endpoint) -> u64 {
    peer.ring_address().unwrap_or(0)
}

/// A forged request. Where it has no bytes it takes so many from a room that holds ee.
pub(super) struct Forged {
    pub opcode: u32,
    pub bytes: Vec<u8>,
    pub len: u32,
    pub to: u64,
    pub rkey: u32,
    pub imm: u32,
}

/// The immediate of the next forged write.
pub(super) fn numbered(imm: u32) -> u32 {
    let imm = Immediate::parse(imm);
    let ahead = NUMBERED.fetch_add(1, Relaxed) + 1;
    Immediate { sequence: imm.sequence.wrapping_add(ahead as u8), ..imm }.emit()
}

fn post(all: &mut State, (place, link): (usize, usize), forged: &Forged) -> bool {
    for _ in 0..20_000 {
        let Some(Some(group)) = all.groups.get_mut(place) else { return false };
        let used: &mut Link = &mut group.links[link];
        if used.is_down || used.qp.is_none() {
            return false;
        }
        if used.forge(forged) {
            return true;
        }
        // The send queue is full.
        all.poll();
    }
    false
}

fn bytes(text: &str, own: u32, peer: u32) -> Vec<u8> {
    let text = text.replace('O', &format!("{own:08x}")).replace('P', &format!("{peer:08x}"));
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map_while(byte).collect()
}
