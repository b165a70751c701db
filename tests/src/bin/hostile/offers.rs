//! Owns: offers that must be refused, messages that make no sense, and a peer that dies on the way.
//! After each the connection itself goes on over TCP.

use crate::link::{Link, READY};
use crate::region::{Kind, Region, at};
use anyhow::{Context, Result, bail, ensure};
use smcr_proto::reason::Reason;
use smcr_proto::rendezvous::{MAX_MESSAGE, Message, VERSION_HIGH, VERSION_LOW};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::*;

pub fn run(to: SocketAddr, args: &[String]) -> Result<()> {
    match args.first().context("which")?.as_str() {
        "kinds" => kinds(to),
        "versions" => versions(to),
        "garbage" => garbage(to),
        "descriptors" => descriptors(to),
        "deaths" => deaths(to),
        other => bail!("unknown offer {other}"),
    }
}

const VERSIONS: (u16, u16) = (VERSION_LOW, VERSION_HIGH);

/// The connection works as plain TCP.
fn goes_on(link: &mut Link) -> Result<()> {
    for n in [1, 100, 30_000] {
        link.echo(n)?;
    }
    ensure!(link.region.d64(1, at::HEAD).load(Relaxed) == 0, "payload in a refused region");
    Ok(())
}

/// Regions that could be torn away or raise SIGBUS.
fn kinds(to: SocketAddr) -> Result<()> {
    use Kind::*;
    for kind in [NoSeals, Shrinkable, TooShort, TooLong, WrongMagic, HugeTlb, Pipe, File, Proc] {
        let region = match Region::new(kind) {
            Ok(r) => r,
            Err(e) if kind == HugeTlb => {
                println!("{kind:?}: left out ({e})");
                continue;
            }
            Err(e) => return Err(e).context(format!("{kind:?}")),
        };
        let mut link = Link::new(to, region)?;
        let offer = link.offer(VERSIONS, link.facts.cookie);
        ensure!(!link.negotiate(offer)?, "{kind:?} was taken");
        // SAFETY: our own descriptor; shrinks what can be shrunk under whoever mapped it.
        unsafe { libc::ftruncate(link.region.fd.as_raw_fd(), 0) };
        if !matches!(kind, Shrinkable | NoSeals | File) {
            goes_on(&mut link).with_context(|| format!("{kind:?}"))?;
        } else {
            link.echo(30_000).with_context(|| format!("{kind:?}"))?;
        }
        println!("{kind:?}: refused, goes on over TCP");
    }
    Ok(())
}

fn versions(to: SocketAddr) -> Result<()> {
    for versions in [(VERSION_HIGH + 1, VERSION_HIGH + 9), (0, VERSION_LOW - 1), (u16::MAX, u16::MAX)] {
        let mut link = Link::new(to, Region::new(Kind::Right)?)?;
        let offer = link.offer(versions, link.facts.cookie);
        ensure!(!link.negotiate(offer)?, "{versions:?} was taken");
        let refused = link.answers.iter().any(|m| matches!(m, Message::Answer(a) if a.reason == Reason::Version && a.version == 0));
        ensure!(refused, "{versions:?}: {:?}", link.answers);
        goes_on(&mut link)?;
    }
    println!("versions: refused");
    Ok(())
}

/// Messages that are none, each on a channel of its own; after each an honest client is served.
fn garbage(to: SocketAddr) -> Result<()> {
    let mut raws: Vec<Vec<u8>> = vec![vec![0], vec![0xff; 96], b"SMCR".to_vec(), vec![7; 4000]];
    let mut link = Link::new(to, Region::new(Kind::Right)?)?;
    let cookie = link.facts.cookie;
    let mut whole = [0; MAX_MESSAGE];
    let n = Message::Offer(link.offer(VERSIONS, cookie)).emit(&mut whole, false);
    raws.extend((1..n).map(|cut| whole[..cut].to_vec()));
    raws.push(whole.to_vec());
    for kind in 0..=255 {
        let mut raw = whole[..n].to_vec();
        raw[4] = kind;
        raw[8..24].fill(kind);
        if kind != 1 {
            raws.push(raw);
        }
    }
    for raw in raws.iter().take(raws.len() - 1) {
        link.hung_up = false;
        link.open_channel()?;
        // Without the descriptor that an offer needs.
        let _ = link.tell(raw, &[]);
        link.echo(8)?;
    }
    goes_on(&mut link)?;
    drop(link);
    let mut link = Link::new(to, Region::new(Kind::Right)?)?;
    let offer = link.offer(VERSIONS, link.facts.cookie);
    ensure!(link.negotiate(offer)?, "an honest offer after the garbage was not taken");
    println!("garbage: {} messages", raws.len());
    Ok(())
}

/// More descriptors than a message has: none may stay open in the server.
fn descriptors(to: SocketAddr) -> Result<()> {
    let mut link = Link::new(to, Region::new(Kind::Right)?)?;
    let fd = link.region.fd.as_raw_fd();
    let mut raw = [0; MAX_MESSAGE];
    let n = Message::Offer(link.offer(VERSIONS, link.facts.cookie)).emit(&mut raw, false);
    let page = {
        let mut p = raw;
        p[6] = 1;
        p
    };
    for count in [0usize, 2, 3, 4, 5, 50, 100] {
        for bytes in [&raw[..n], &page[..n], &raw[..5], &[][..]] {
            if count <= 2 && bytes.len() == n && (count == 2) == (bytes[6] == 1) {
                continue; // this one is right
            }
            link.open_channel()?;
            let _ = link.tell(bytes, &vec![fd; count]);
            link.echo(8)?;
            link.echo(8)?;
        }
    }
    goes_on(&mut link)?;
    println!("descriptors: refused");
    Ok(())
}

/// A peer that ends at each step; also one that closes the channel alone.
fn deaths(to: SocketAddr) -> Result<()> {
    for step in 0..6 {
        for only_channel in [true, false] {
            let mut link = Link::new(to, Region::new(Kind::Right)?)?;
            let offer = link.offer(VERSIONS, link.facts.cookie);
            match step {
                0 => link.open_channel()?,
                1 => {
                    link.open_channel()?;
                    let mut raw = [0; MAX_MESSAGE];
                    let n = Message::Offer(offer).emit(&mut raw, false);
                    link.tell(&raw[..n], &[link.region.fd.as_raw_fd()])?;
                }
                _ => ensure!(link.negotiate(offer)?, "not taken: {:?}", link.answers),
            }
            if step >= 3 {
                link.region.d32(1, at::CTL).fetch_or(READY, SeqCst);
            }
            if step >= 4 {
                link.prove()?;
            }
            if step >= 5 {
                link.ring(&[1; 5000]);
            }
            link.channel = None;
            if only_channel && step < 4 {
                goes_on_in_either(&mut link).with_context(|| format!("step {step}"))?;
            }
        }
    }
    println!("deaths: survived");
    Ok(())
}

/// The server may have moved its direction to the ring; what comes back is right in any case.
fn goes_on_in_either(link: &mut Link) -> Result<()> {
    for n in [1usize, 100, 3000] {
        let bytes = vec![n as u8; n];
        link.send_raw(&bytes)?;
        link.expect(&bytes)?;
    }
    Ok(())
}
