//! The model checks; docs/readiness.md says which promise each stands for.

mod alone;
mod asleep;
mod careful;
mod doorbell;
mod finish;
mod gate;
mod held;
mod lists;
mod lock;
mod marks;
mod memory;
mod names;
mod passer;
mod posts;
mod ring;
mod sleep;
mod sleepers;
mod space;
mod switch;
mod unseen;
mod wishes;
