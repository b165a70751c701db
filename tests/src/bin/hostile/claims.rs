//! Owns: claims in the shared memory that no honest peer makes and that lead nowhere: what the server
//! does about them must come to an end.

use crate::attacks::establish;
use crate::link::{Link, PATIENCE, READY};
use crate::region::{Kind, NONCE, Region, SERVER, at};
use anyhow::{Result, anyhow, bail, ensure};
use smcr_proto::rendezvous::{VERSION_HIGH, VERSION_LOW};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::*;

const RETURN: u32 = 2;
const TAKEN: u32 = 8;
/// Values of [`SERVER`]: the nonce is on the socket; a proof comes.
const SEEN: u32 = 1;
const COMMITTED: u32 = 4;
/// How the server ends a connection.
const ENDS: [ErrorKind; 2] = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];

/// Makes one claim, says "claimed", and stays: `claim ADDRESS NAME`.
pub fn claim(to: SocketAddr, args: &[String]) -> Result<()> {
    let name = args.first().map_or("", String::as_str);
    if name.starts_with("proof") {
        return unproved(to, name);
    }
    let mut link = establish(to)?;
    let next = link.region.d32(0, at::SWITCH).load(Relaxed) + 1;
    let head = link.region.d64(0, at::HEAD).load(Relaxed);
    let r = &link.region;
    match name {
        // The server's own request to come back, which it never made.
        "frozen" => drop(r.d32(0, at::CTL).fetch_or(RETURN, SeqCst)),
        "taken" => drop(r.d32(0, at::CTL).fetch_or(TAKEN, SeqCst)),
        "frozen-taken" => drop(r.d32(0, at::CTL).fetch_or(RETURN | TAKEN, SeqCst)),
        // Marks of an end that are none, and of a reset that never comes.
        "end-4" => r.d32(0, at::FIN).store(4, SeqCst),
        "end-8" => r.d32(0, at::FIN).store(8, SeqCst),
        "end-top" => r.d32(0, at::FIN).store(1 << 31, SeqCst),
        "end-reset" => r.d32(0, at::FIN).store(7, SeqCst),
        // The way back begins behind doorbells that were never sent.
        "bells" | "bells-counted" => {
            if name == "bells-counted" {
                r.d32(0, at::BELLS).fetch_add(3, SeqCst);
            }
            r.d64(0, at::AT_RING + 8 * next as usize).store(head, SeqCst);
            r.d64(0, at::AT_KERNEL + 8 * next as usize).store(link.sent + 3, SeqCst);
            r.d32(0, at::SWITCH).store(next, SeqCst);
        }
        // As a peer that was killed between a doorbell and counting it, and as one that was stopped.
        "uncounted" => link.tcp.write_all(&[0xb7])?,
        "uncounted-end" => {
            link.tcp.write_all(&[0xb7])?;
            link.tcp.shutdown(std::net::Shutdown::Write)?;
            return ended(link);
        }
        _ => bail!("unknown claim {name}"),
    }
    if !name.starts_with("bells") && !name.starts_with("uncounted") {
        link.ring(&[7; 100]);
    }
    link.wake();
    stay()
}

/// A FIN behind a byte that was never counted is the end all the same: the server closes.
fn ended(mut link: Link) -> Result<()> {
    link.tcp.set_nonblocking(false)?;
    let mut buf = [0; 64];
    while matches!(link.tcp.read(&mut buf), Ok(n) if n > 0) {}
    stay()
}

/// A switch is marked whose proof does not come, or comes in part: `proof-none`, `proof-part`, `proof-begun`, `proof-most`, or something else:
/// `proof-wrong`. That, and a short part that stays one, is payload, and is echoed. Of somebody who has said before that the proof comes, it is nobody's, as is half of it and
/// more, and the server resets.
fn unproved(to: SocketAddr, name: &str) -> Result<()> {
    let mut link = Link::new(to, Region::new(Kind::Right)?)?;
    let offer = link.offer((VERSION_LOW, VERSION_HIGH), link.facts.cookie);
    ensure!(link.negotiate(offer)?, "the offer was not taken");
    while link.region.d32(0, at::CTL).load(Acquire) & READY == 0 {
        link.echo(8)?;
    }
    if name == "proof-again" {
        return proved_at_last(link);
    }
    // Of another user the word that it begins counts for nothing: less than half is payload.
    let is_payload = matches!(name, "proof-part" | "proof-wrong") || name == "proof-begun" && std::env::var_os("HOSTILE_AS").is_some();
    if !is_payload && name != "proof-none" {
        begins(&link)?;
    }
    link.mark(1);
    if name != "proof-none" {
        let mut part = vec![
            0;
            match name {
                "proof-wrong" => 16,
                "proof-most" => 15,
                _ => 7,
            }
        ];
        for (i, b) in part.iter_mut().enumerate() {
            let word = link.region.u64(NONCE + i / 8 * 8).load(Relaxed);
            *b = word.to_le_bytes()[i % 8] ^ u8::from(name == "proof-wrong");
        }
        link.send_raw(&part)?;
        let mut back = vec![0; part.len()];
        match link.tcp.read_exact(&mut back) {
            Ok(()) => ensure!(is_payload && back == part, "the payload differs"),
            Err(e) => ensure!(!is_payload && ENDS.contains(&e.kind()), "{e}"),
        }
    }
    stay()
}

/// A mark is taken back before its proof is sent, as where the kernel does not take that, again and again while the server reads. Then
/// one stays, and the server follows it.
fn proved_at_last(mut link: Link) -> Result<()> {
    let message = [0x5a; 8];
    for round in 0..1500 {
        link.send_raw(&message)?;
        for n in 0..400 {
            begins(&link)?;
            link.mark(1);
            (0..(round + n) % 16).for_each(|_| std::hint::spin_loop());
            link.region.d32(0, at::SWITCH).store(0, SeqCst);
            let _ = link.region.u32(SERVER).compare_exchange(COMMITTED, SEEN, SeqCst, SeqCst);
        }
        let mut back = [0; 8];
        link.tcp.read_exact(&mut back)?;
        ensure!(back == message, "the echo differs");
    }
    begins(&link)?;
    link.prove()?;
    link.ring(&[7; 100]);
    link.expect(&[7; 100])?;
    stay()
}

/// From here on the server waits for the proof.
fn begins(link: &Link) -> Result<()> {
    let before = link.region.u32(SERVER).compare_exchange(SEEN, COMMITTED, SeqCst, SeqCst);
    before.map(drop).map_err(|now| anyhow!("the server is at {now}"))
}

fn stay() -> Result<()> {
    println!("claimed");
    std::io::stdout().flush()?;
    std::thread::sleep(PATIENCE * 3);
    Ok(())
}
