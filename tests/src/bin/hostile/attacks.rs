//! Owns: what is done to a connection that is proved and in memory.

use crate::link::{Link, PATIENCE, READY, until};
use crate::region::{Kind, LEN, RING_MAX, Region, at};
use anyhow::{Context, Result, bail, ensure};
use smcr_proto::rendezvous::{VERSION_HIGH, VERSION_LOW};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// A connection in memory both ways, as an honest library would have it.
pub fn establish(to: SocketAddr) -> Result<Link> {
    let mut link = Link::new(to, Region::new(Kind::Right)?)?;
    let offer = link.offer((VERSION_LOW, VERSION_HIGH), link.facts.cookie);
    ensure!(link.negotiate(offer)?, "an honest offer was not taken: {:?}", link.answers);
    link.region.d32(1, at::CTL).fetch_or(READY, SeqCst);
    link.prove()?;
    for i in 0..8u8 {
        let message = [i ^ 0x33; 100];
        link.ring(&message);
        link.expect(&message)?;
    }
    ensure!(link.region.d32(1, at::SWITCH).load(Relaxed) == 1, "the server stays on TCP");
    Ok(link)
}

/// The tool itself: with an honest one everything works.
pub fn honest(to: SocketAddr) -> Result<()> {
    let mut link = establish(to)?;
    for i in 0..200u32 {
        let message: Vec<u8> = (0..1 + i * 37 % 4000).map(|k| (k * i) as u8).collect();
        link.ring(&message);
        link.expect(&message)?;
    }
    println!("honest: in memory both ways");
    Ok(())
}

/// Names of the single wrong values that must cost the connection.
const FIELDS: &[&str] =
    &["head-far", "head-back", "tail-ahead", "tail-back", "size-zero", "size-odd", "size-huge", "size-wide", "bells-far", "frozen-far"];

/// The same of a switch that is marked. The server looks at it when it reads, and not while nothing seems to have come.
const SWITCHES: &[&str] = &["switch-far", "switch-back", "ring-mark-back", "kernel-mark-back"];

/// One wrong value in one field: the connection is reset.
pub fn field(to: SocketAddr, args: &[String]) -> Result<()> {
    match args.first().map(String::as_str) {
        Some("all") => FIELDS.iter().chain(SWITCHES).try_for_each(|name| one(to, name).context(*name)),
        Some(name) => one(to, name),
        None => bail!("which field"),
    }
}

fn one(to: SocketAddr, name: &str) -> Result<()> {
    if SWITCHES.contains(&name) { one_switch(to, name) } else { one_field(to, name) }
}

fn one_field(to: SocketAddr, name: &str) -> Result<()> {
    let mut link = establish(to)?;
    let r = &link.region;
    let (head, tail) = (r.d64(0, at::HEAD), r.d64(1, at::TAIL));
    let (sent, got) = (head.load(Relaxed), tail.load(Relaxed));
    // What goes on in the ring meanwhile, so that the server comes to look.
    let mut traffic = false;
    match name {
        "head-far" => head.store(sent + 64 * 1024 + 1, SeqCst),
        "head-back" => head.store(sent - 1, SeqCst),
        "tail-ahead" => {
            tail.store(got + 1_000_000, SeqCst);
            traffic = true;
        }
        "tail-back" => {
            tail.store(got.wrapping_sub(1 << 20), SeqCst);
            traffic = true;
        }
        "size-zero" => {
            r.d32(0, at::SIZE).store(0, SeqCst);
            head.store(sent + 1, SeqCst);
        }
        "size-odd" => {
            r.d32(0, at::SIZE).store(4097, SeqCst);
            head.store(sent + 1, SeqCst);
        }
        "size-huge" => {
            r.d32(0, at::SIZE).store(1 << 30, SeqCst);
            head.store(sent + 1, SeqCst);
        }
        // The wide ring, which this end was never asked about.
        "size-wide" => {
            r.d32(0, at::SIZE).store((1 << 30) | (64 * 1024), SeqCst);
            head.store(sent + 1, SeqCst);
        }
        "bells-far" => {
            r.d32(0, at::BELLS).fetch_add(1 << 24, SeqCst);
        }
        "frozen-far" => {
            r.d64(1, at::FROZEN).store(u64::MAX / 2, SeqCst);
            r.d32(1, at::CTL).fetch_or(2, SeqCst);
        }
        _ => bail!("unknown field {name}"),
    }
    until("reset", || {
        if traffic {
            let old = link.region.d64(1, at::TAIL).load(Relaxed);
            link.ring(&[7; 1000]);
            link.region.d64(1, at::TAIL).store(old, Relaxed);
        } else {
            // A byte that the server need not expect brings it to the socket.
            let _ = std::io::Write::write(&mut link.tcp, &[0xb7]);
            link.wake();
        }
        Ok(link.is_over().then_some(()))
    })?;
    println!("{name}: reset");
    Ok(())
}

/// A wrong switch is marked behind bytes that the server is about to read, as soon or late as it takes until it meets one: a reset. Where
/// it has not looked, the mark is taken away again, and the connection is whole.
fn one_switch(to: SocketAddr, name: &str) -> Result<()> {
    const BYTES: [u8; 100] = [0x5c; 100];
    let mut link = establish(to)?;
    link.in_memory = true;
    let (end, mut unseen) = (Instant::now() + PATIENCE * 2, 0usize);
    loop {
        let passed = link.region.d32(0, at::SWITCH).load(Relaxed);
        let next = passed + 1;
        let begin = link.region.d64(0, at::HEAD).load(Relaxed);
        let answered = link.region.d64(1, at::HEAD).load(Relaxed);
        let messages = 1 + unseen % 100;
        (0..messages).for_each(|_| link.ring(&BYTES));
        let r = &link.region;
        // When it has begun to read or to answer, and looks for more behind that; or at any time.
        let rests = || r.d64(0, at::TAIL).load(Relaxed) == begin && r.d64(1, at::HEAD).load(Relaxed) == answered;
        let (patience, late) = (Instant::now() + Duration::from_millis(2), unseen % 2 * (unseen % 64) * 500);
        while late == 0 && rests() && Instant::now() < patience {}
        (0..late).for_each(|_| std::hint::spin_loop());
        let head = r.d64(0, at::HEAD).load(Relaxed);
        let (switch, at_ring, at_kernel) = match name {
            // Marks that are possible, and a number that is not.
            "switch-far" => (next + 7, head, link.sent),
            "switch-back" => (0, head, link.sent),
            "ring-mark-back" => (next, begin - 5, link.sent),
            "kernel-mark-back" => (next, head, 1),
            _ => bail!("unknown field {name}"),
        };
        r.d64(0, at::AT_RING + 8 * next as usize).store(at_ring, Relaxed);
        r.d64(0, at::AT_KERNEL + 8 * next as usize).store(at_kernel, Relaxed);
        r.d32(0, at::SWITCH).store(switch, SeqCst);
        let look = Instant::now() + Duration::from_millis(5);
        while Instant::now() < look {
            if link.is_over() {
                println!("{name}: reset, after {unseen} that were not looked at");
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        link.region.d32(0, at::SWITCH).store(passed, SeqCst);
        link.wake();
        if let Err(e) = link.expect(&BYTES.repeat(messages)) {
            ensure!(link.is_over(), "a mark that was taken away: {e:#}");
            println!("{name}: reset, after {unseen} that were not looked at");
            return Ok(());
        }
        unseen += 1;
        ensure!(Instant::now() < end, "never looked at, {unseen} times");
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    fn value(&mut self, now: u64) -> u64 {
        let n = self.roll();
        match n % 11 {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            3 => now.wrapping_add(1),
            4 => now.wrapping_sub(1),
            5 => now.wrapping_add(64 * 1024 + 1),
            6 => now.wrapping_add(n >> 8 & 0xffff),
            7 => 1 << (n >> 8 & 63),
            8 => 0x8000_0000 | n >> 8 & 0xff_ffff, // a waiter
            9 => n >> 8 & 7,
            _ => n,
        }
    }
}

/// Of so many connections some are reset; of a few it may be that what was written was possible.
const MANY: u64 = 10;

/// Random values in random fields while traffic flows: `fuzz ADDRESS SEED CONNECTIONS`.
pub fn fuzz(to: SocketAddr, args: &[String]) -> Result<()> {
    let seed: u64 = args.first().context("seed")?.parse()?;
    let connections: u64 = args.get(1).context("connections")?.parse()?;
    let (mut resets, mut writes) = (0, 0);
    for i in 0..connections {
        let mut dice = Dice((seed + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut link = establish(to).with_context(|| format!("seed {}", seed + i))?;
        let end = Instant::now() + PATIENCE;
        for _ in 0..400 {
            writes += 1;
            let n = dice.roll();
            if n.is_multiple_of(5) {
                let head = link.region.d64(0, at::HEAD).load(Relaxed);
                let size = dice.roll() % 3000;
                link.region.d64(0, at::HEAD).store(head.wrapping_add(size), SeqCst);
            } else if n % 5 == 1 {
                // Anywhere in the header: both directions, marks, nonce, padding.
                let word = link.region.u32((dice.roll() % 288 * 4) as usize);
                word.store(dice.value(u64::from(word.load(Relaxed))) as u32, SeqCst);
            } else if n % 5 == 2 {
                let word = link.region.u64((dice.roll() % 144 * 8) as usize);
                word.store(dice.value(word.load(Relaxed)), SeqCst);
            } else if n % 5 == 3 {
                let cell = link.region.word((dice.roll() % (LEN as u64 / 8) * 8) as usize);
                cell.store(dice.roll(), SeqCst);
            } else {
                let _ = std::io::Write::write(&mut link.tcp, &[n as u8]);
            }
            link.wake();
            if link.is_over() || Instant::now() > end {
                resets += 1;
                break;
            }
            if n.is_multiple_of(7) {
                std::thread::yield_now();
            }
        }
    }
    println!("fuzz: {connections} connections, {writes} writes, {resets} reset");
    ensure!(resets > 0 || connections < MANY, "nothing was ever reset: nothing was reached");
    Ok(())
}

/// Fills the way back, then asks for all of the ring through TCP and reads nothing: the server must
/// not wait for us. Stays until it is killed or the server ends the connection.
pub fn stall(to: SocketAddr) -> Result<()> {
    let mut link = establish(to)?;
    // The peer's ring is full: what it echoes stays there.
    for _ in 0..80 {
        link.ring(&[9; 1000]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    link.region.d64(1, at::FROZEN).store(link.region.d64(1, at::TAIL).load(Relaxed), SeqCst);
    link.region.d32(1, at::CTL).fetch_or(2, SeqCst);
    link.wake();
    println!("stalled");
    std::io::Write::flush(&mut std::io::stdout())?;
    std::thread::sleep(PATIENCE * 3);
    Ok(())
}

/// Keeps the region of a connection that has ended: what the server has written there, and was read, must not stay on its account.
pub fn keep(to: SocketAddr) -> Result<()> {
    let mut link = establish(to)?;
    let mut is_written = false;
    for i in 0..40u8 {
        let message = [i; 4000];
        link.ring(&message);
        link.expect(&message)?;
        is_written |= link.region.first_page()? < RING_MAX;
    }
    ensure!(is_written, "the server's ring was never more than the header's page");
    link.tcp.shutdown(std::net::Shutdown::Write)?;
    until("the server closes", || Ok(link.is_over().then_some(())))?;
    until("its pages", || Ok((link.region.first_page()? >= RING_MAX).then_some(())))?;
    println!("kept nothing");
    Ok(())
}
