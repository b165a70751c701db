//! Large amounts: the wide ring, copies past the caches, and the change between them and the ring (`engine::bulk`). What a copy
//! costs depends on the machine, so the mode in which connections change at random says here what it costs: each kind in turn.

use anyhow::{Context, Result, ensure};
use smcr_tests::twice::{self, Ends};

/// Changes of the medium so rare that there is none, and copies of every kind.
const PACES: (&str, &str) = ("SMCR_FLIP", "4000000000,1");

/// Runs a case natively and with the library at both ends, where each must have so many wide rings mapped.
fn check(name: &str, wide: u32) -> Result<()> {
    run(name, &[(name, wide)])
}

fn run(name: &str, at: &[(&str, u32)]) -> Result<()> {
    let cases = twice::cases("bulk")?;
    let case = cases.iter().find(|case| case.name == name).context("no such case")?;
    let native = case.run(Ends::Neither)?;
    case.ensure_sound(&native)?;
    let got = case.run_with(Ends::Both, &|program| program.env(PACES.0, PACES.1))?;
    ensure!(got.transcript == native.transcript, "natively:\n{}\nwith it:\n{}\n{}", native.transcript, got.transcript, got.notes);
    for (point, wide) in at {
        for end in ["a", "b"] {
            let line = format!("{end}: {point} {wide} wide");
            ensure!(got.notes.lines().any(|l| l == line), "no line '{line}' in\n{}", got.notes);
        }
    }
    Ok(())
}

#[test]
fn large_and_small_take_turns() -> Result<()> {
    check("turns", 1)
}

#[test]
fn a_header_before_each_block() -> Result<()> {
    check("headers", 1)
}

#[test]
fn children_go_on_where_their_parents_were() -> Result<()> {
    check("forked", 1)
}

#[test]
fn what_two_processes_hold_stays_in_its_ring() -> Result<()> {
    check("shared", 0)
}

#[test]
fn looked_at_before_it_is_read() -> Result<()> {
    check("peeked", 1)
}

#[test]
fn left_unread_until_it_goes_through_tcp() -> Result<()> {
    check("unread", 1)
}

#[test]
fn sent_again_through_tcp() -> Result<()> {
    check("pinned", 1)
}

/// Files never ask for the wide ring; from 30 MiB on they are read by way of memory of the library's own (`engine::file::tests` shows that they are).
#[test]
fn files_by_sendfile() -> Result<()> {
    check("files", 0)
}

#[test]
fn no_more_connections_than_a_third_cache_has_room_for() -> Result<()> {
    run("forty", &[("forty", 32), ("after", 0)])
}
