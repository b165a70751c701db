//! The command linkgroup. Family pages of this version have no records of link groups: what can
//! be said is which connections use RDMA, and mostly that there are none.

use serde_json::json;

use crate::cli::{Json, Who};
use crate::out;
use crate::scan::Host;
use crate::sock;

/// Medium number of RDMA in a socket record.
const RDMA: u8 = 2;

pub fn run(args: &Json) -> anyhow::Result<()> {
    let who = Who::default();
    let host = Host::scan(&who)?;
    let mut found = host.connections(&who);
    found.retain(|c| c.socket.tx_medium == RDMA || c.socket.rx_medium == RDMA);
    if args.json {
        let connections: Vec<_> = found.iter().map(sock::as_json).collect();
        return out::json(&json!({ "linkgroups": [], "connections": connections }));
    }
    if found.is_empty() {
        return out::print("no link groups\n");
    }
    out::print(&format!(
        "{} connections use RDMA (smcrctl sock --mode rdma); the libraries' pages do not say in which link groups\n",
        found.len()
    ))
}
