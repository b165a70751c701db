//! The model checks; docs/readiness.md says which promise each stands for.

mod alone;
mod careful;
mod doorbell;
mod gate;
mod held;
mod ring;
mod sleep;
mod sleepers;
mod space;
mod switch;
mod unseen;
