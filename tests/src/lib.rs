//! The harness of the tests that look at smcr from the outside.
//!
//! - [`net`]: a network namespace for each test, and what crossed its `lo`;
//! - [`library`]: where libsmcr.so is, built once;
//! - [`process`]: programs with and without the library, never waited for without a deadline;
//! - [`dump`]: what a hung process was doing;
//! - [`twice`]: small programs run natively and under the library, and compared;
//! - [`share`]: how much of a workload's payload stayed off TCP;
//! - [`apps`]: redis, nginx and the others, started in a namespace; [`wrk`]: wrk, which compares what it gets;
//! - [`streams`]: jobs of iperf3, memcached, netcat and socat;
//! - [`mill`]: streams on several connections, whose ends are killed; [`judge`]: what the other ends must see; [`census`]: what is left then;
//! - [`page`]: what a process showed of itself, also after its death;
//! - [`fired`]: the faults that fired in the library's build with faults;
//! - [`slow`]: failures that a slow machine may make;
//! - [`dice`]: random numbers that a seed repeats.
//!
//! A test never asserts a time, and where acceleration is expected it asserts the share of the
//! payload that left TCP: a test that passes because everything fell back is a defect.

pub mod apps;
pub mod census;
pub mod dice;
pub mod dump;
pub mod fired;
pub mod judge;
pub mod library;
pub mod mill;
pub mod net;
pub mod page;
pub mod process;
pub mod share;
pub mod slow;
pub mod streams;
pub mod twice;
pub mod wrk;
