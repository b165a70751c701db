//! What the models share: the two ways to run one, and the kernel's part of a connection.
//!
//! Each file in `tests/` is a model of one protocol of docs/readiness.md, small enough that loom
//! visits every interleaving and every value that a relaxed load may return. A model has siblings
//! that leave one fence, ordering or step out; those must fail, so that the check is known to be
//! able to.
//!
//! loom takes SeqCst accesses for AcqRel ones; only `fence(SeqCst)` is modelled. Where the library
//! relies on SeqCst accesses the model has a fence beside the access ([`sc`]).

pub mod kernel;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a model: its assertions hold in every execution.
pub fn holds(model: impl Fn() + Sync + Send + 'static) {
    builder().check(model);
}

/// Runs a weakened model: there is an execution in which an assertion fails.
pub fn breaks(what: &str, model: impl Fn() + Sync + Send + 'static) {
    let found = catch_unwind(AssertUnwindSafe(|| builder().check(model)));
    let Err(why) = found else { panic!("nothing fails: {what}") };
    let text = why.downcast_ref::<String>().map(String::as_str).or(why.downcast_ref::<&str>().copied());
    // An end for loom's own reasons shows nothing.
    assert!(!text.is_some_and(|t| t.contains("exceeded")), "{what}: {text:?}");
}

fn builder() -> loom::model::Builder {
    let mut b = loom::model::Builder::new();
    // Three involuntary switches find every bug of this kind that is known; LOOM_MAX_PREEMPTIONS
    // says otherwise where somebody has the time.
    b.preemption_bound = b.preemption_bound.or(Some(3));
    b.max_branches = 20_000;
    b
}

/// Sequentially consistent accesses, as loom can see them.
pub mod sc {
    use loom::sync::atomic::{AtomicU32, Ordering::*, fence};

    /// A SeqCst store that a SeqCst load of another word comes after.
    pub fn store(word: &AtomicU32, value: u32, strong: bool) {
        word.store(value, Release);
        if strong {
            fence(SeqCst);
        }
    }

    /// A SeqCst fetch_add that a SeqCst load of another word comes after.
    pub fn add(word: &AtomicU32, n: u32, strong: bool) -> u32 {
        let old = word.fetch_add(n, AcqRel);
        if strong {
            fence(SeqCst);
        }
        old
    }
}
