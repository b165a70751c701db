//! Tests of smcrctl as a user sees it: arguments in, text and exit status out. They need neither
//! the library nor privilege: pages of processes are made by `fake`, files lie in a directory of
//! each test.

mod bed;
mod drain;
mod elf;
mod fake;
mod manual;
mod many;
mod nobody;
mod observation;
mod page;
mod programs;
mod settings;
mod statistics;
mod units;
