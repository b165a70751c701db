//! Tests of SMC-R from outside the crate.
//!
//! `golden` and `replay` hold the code against captures of Linux kernels; `properties` feeds it
//! arbitrary input; `handshakes`, `links`, `second_link` and `connections` ask each machine about its rules;
//! `scenarios` runs two whole ends in the simulator of `pair`.

mod connections;
mod connections_failover;
mod connections_immediate;
mod connections_unread;
mod connections_urgent;
mod connections_window;
mod golden;
mod handshakes;
mod handshakes_out_of_turn;
mod handshakes_refused;
mod keys;
mod links;
mod links_end;
mod pair;
mod parts;
mod properties;
mod proposals;
mod replay;
mod scenarios;
mod scenarios_again;
mod scenarios_failover;
mod scenarios_tcp;
mod scenarios_way_back;
mod second_link;
mod vectors;
