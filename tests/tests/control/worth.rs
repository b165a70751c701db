//! When a connection leaves TCP: after the thresholds that are set, and by default later on a port whose
//! connections end soon.

use anyhow::{Result, ensure};
use smcr_tests::process::flipping;

use crate::bed::{Bed, Client};
use crate::counters::{counter, stats};

/// Tests set others where they do not say so.
const DEFAULTS: [(&str, &str); 2] = [("SMCR_SWITCH_OPS", "16"), ("SMCR_SWITCH_BYTES", "65536")];

/// More than the threshold, and far less than pays for a switch.
fn short_ones(client: &Client, n: u32) -> Result<()> {
    for _ in 0..n {
        client.tell("open s 7000")?;
        client.tell("talk s 14 100")?;
        client.tell("close s")?;
    }
    Ok(())
}

/// How many of `n` short connections the server thinks worth a switch.
fn announced(bed: &Bed, server: i32, client: &Client, n: u32) -> Result<u64> {
    let before = counter(&stats(bed, server)?, "announces");
    short_ones(client, n)?;
    Ok(counter(&stats(bed, server)?, "announces") - before)
}

#[test]
fn a_port_whose_connections_end_soon() -> Result<()> {
    let bed = Bed::new()?;
    let server = bed.server(&DEFAULTS)?;
    let client = bed.client(&DEFAULTS)?;
    let first = announced(&bed, server.pid(), &client, 20)?;
    ensure!((1..=2).contains(&first), "{first} of 20 were announced");
    let again = announced(&bed, server.pid(), &client, 20)?;
    ensure!(again == 0, "{again} of 20 were announced");
    // One that goes on leaves TCP there too, and shows that the next may.
    client.open("long", 7000)?;
    client.moves_to_memory("long")?;
    if flipping() {
        return Ok(()); // on TCP half of the time, where its sizes are not counted
    }
    client.tell("talk long 1000 100")?;
    client.tell("close long")?;
    let after = announced(&bed, server.pid(), &client, 20)?;
    ensure!((1..=2).contains(&after), "{after} of 20 were announced");
    Ok(())
}

#[test]
fn a_threshold_that_is_set() -> Result<()> {
    let bed = Bed::new()?;
    let env = [("SMCR_SWITCH_OPS", "15"), DEFAULTS[1]];
    let server = bed.server(&env)?;
    let client = bed.client(&env)?;
    let all = announced(&bed, server.pid(), &client, 20)?;
    ensure!(all == 20, "{all} of 20 were announced");
    Ok(())
}
