//! What keeps a connection on TCP, or takes it back, is what its end says of it: reasons by name, of connections on which it happens.

use anyhow::{Context, Result};
use smcr_tests::process::eventually;

use crate::bed::{Bed, Client, PORTS};

/// When a program does it.
#[derive(Clone, Copy, PartialEq)]
enum When {
    /// Before anything has been sent.
    First,
    /// In memory.
    Later,
}

use When::{First, Later};

/// What `steered.py` does, and the reason at its end.
const ACTIONS: [(&str, When, &str); 14] = [
    ("fdopen", First, "stdio"),
    ("fdopen", Later, "stdio"),
    ("urgent", First, "urgent"),
    ("urgent", Later, "urgent"),
    ("zerocopy", First, "zerocopy"),
    ("zerocopy", Later, "zerocopy"),
    ("o-async", First, "o-async"),
    ("o-async", Later, "o-async"),
    ("pacing", First, "pacing"),
    ("pass", First, "passed"),
    ("pass", Later, "passed"),
    ("fork", First, "fork-shared"),
    ("io-uring", First, "io-uring"),
    ("seccomp", First, "seccomp"),
];

#[test]
fn what_a_program_does_is_what_is_said() -> Result<()> {
    let bed = Bed::new()?;
    let _server = bed.server(&[])?;
    for (action, when, reason) in ACTIONS {
        let client = bed.client(&[])?;
        client.tell(&format!("open a {}", PORTS[0]))?;
        if when == Later {
            client.moves_to_memory("a")?;
        }
        client.tell(&format!("do a {action}"))?;
        if action == "urgent" {
            client.tell("talk a 100 3000")?; // its byte is out of band: no echo of it
        } else {
            client.tell("talk a 300 3000")?;
        }
        says(&client, reason).with_context(|| format!("{action}, in memory before: {}", when == Later))?;
    }
    Ok(())
}

fn says(client: &Client, reason: &str) -> Result<()> {
    let mut seen = Vec::new();
    eventually(reason, || {
        seen = client.reasons()?;
        Ok(seen.iter().any(|r| r == reason))
    })
    .with_context(|| format!("{seen:?}"))
}
