//! The control pages steer running processes: settings, limits, draining, `strict`. What a connection
//! does is seen on `lo`, what it says of itself in `smcrctl sock`.

mod bed;
mod counters;
mod drain;
mod environment;
mod giving;
mod others;
mod settings;
mod strict;
mod worth;
