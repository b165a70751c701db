//! Owns: the words by which a failure says that a slow machine alone may have made it: too little was moved or met in the time that a
//! test gives, and what was moved was right. tests/suites.sh runs a test that failed so once more, and no other: a wrong byte, a hang,
//! a crash or a leak that was seen once is a failure.

use anyhow::{Error, anyhow};

/// What tests/suites.sh looks for.
pub const MARK: &str = "only slow: ";

/// Such a failure.
pub fn only_slow(text: impl std::fmt::Display) -> Error {
    anyhow!("{MARK}{text}")
}
