//! What a walk over the hot members of a set will need from another processor's cache, asked for before: each such line takes
//! 100 ns and more to come, and several come in the time of one.
//!
//! Called by `look`.

use crate::engine::rx;
use crate::family::sock::Sock;
use crate::sys::mem;
use crate::table;
use crate::table::members::Inner;

/// How many members ahead: so many lines are on their way at once.
const FAR: u32 = 8;
/// So many hot members are looked at before a line that was asked for could have come: asking costs more than it saves.
const TOO_FEW: u32 = 2;

/// Before the walk from the member at `from` of the hot list: the producers' cursors of the first ones.
#[inline(always)]
pub fn begin(inner: &Inner, from: u32) {
    if inner.hot_len > TOO_FEW {
        first(inner, from);
    }
}

#[inline(never)]
fn first(inner: &Inner, from: u32) {
    for i in 0..FAR.min(inner.hot_len) {
        cursor(inner, from + i);
    }
}

/// The walk has come to the member at `at`, and looks at `left` with it.
#[inline(always)]
pub fn go_on(inner: &Inner, at: u32, left: u32) {
    if left > FAR {
        cursor(inner, at + FAR);
    }
}

/// The program is about to be told of data: it reads what lies there.
#[inline(always)]
pub fn data(s: &Sock) {
    if let Some(dir) = s.rx.dir() {
        mem::fetch(rx::next_byte(s, dir));
    }
}

#[inline(always)]
fn cursor(inner: &Inner, i: u32) {
    let len = inner.hot_len;
    let i = if i < len { i } else { i - len };
    if i < len
        && let Some(dir) = table::sock(inner.member(inner.hot(i)).fd).and_then(|s| s.rx.dir())
    {
        mem::fetch(std::ptr::from_ref(dir).cast());
    }
}
