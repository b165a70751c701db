//! Owns: a stranger that wants all the memory that a server may use. It runs as nobody, offers regions on many
//! connections at the same moment, again where it was refused and where no socket announces anything.

use crate::link::{Link, PATIENCE, until};
use crate::region::{Kind, Region};
use crate::wakes::become_nobody;
use anyhow::{Context, Result};
use smcr_proto::rendezvous::{VERSION_HIGH, VERSION_LOW};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Arc, Barrier};

/// `hoard SERVER N`: says "holding K of N" when K regions were taken, and holds them until it is killed.
pub fn hoard(server: SocketAddr, args: &[String]) -> Result<()> {
    let count: usize = args.first().context("count")?.parse()?;
    become_nobody()?;
    let taken = Arc::new(AtomicUsize::new(0));
    let together = Arc::new(Barrier::new(count + 1));
    for _ in 0..count {
        let (taken, together) = (taken.clone(), together.clone());
        std::thread::spawn(move || {
            let work = || -> Result<Link> {
                let mut link = Link::new(server, Region::new(Kind::Right)?)?;
                together.wait();
                taken.fetch_add(insist(&mut link)?, Relaxed);
                Ok(link)
            };
            let held = work().unwrap_or_else(|e| {
                eprintln!("{e:#}");
                std::process::exit(1)
            });
            together.wait();
            std::thread::sleep(PATIENCE);
            drop(held);
        });
    }
    together.wait();
    together.wait();
    println!("holding {} of {count}", taken.load(Relaxed));
    std::io::stdout().flush()?;
    std::thread::sleep(PATIENCE);
    Ok(())
}

/// Offers memory three times; 1 if it was taken.
fn insist(link: &mut Link) -> Result<usize> {
    for _ in 0..3 {
        link.answers.clear();
        link.hung_up = false;
        let offer = link.offer((VERSION_LOW, VERSION_HIGH), link.facts.cookie);
        if link.negotiate(offer)? {
            return Ok(1);
        }
    }
    until("TCP after a refusal", || link.echo(30_000).map(Some))?;
    Ok(0)
}
