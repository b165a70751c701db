//! Rules of the control page: by program, role, user, address and port. `policy` asks them in order.

use super::list::{PortRange, Prefix};

/// Bytes kept for the program name of a rule; one is always NUL.
pub const PROGRAM_LEN: usize = 32;

/// Which end of a connection a process is; numbered as in a socket record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Role {
    /// It connected.
    Client = 1,
    /// It accepted.
    Server = 2,
}

/// What a rule orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Use {
    /// May be accelerated, whatever the lists of ports and addresses say.
    #[default]
    Smcr = 0,
    /// Stays on TCP.
    Tcp = 1,
}

/// One rule: it concerns a connection if everything that it names agrees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rule {
    /// What to do.
    pub order: Use,
    /// Pattern (`*`, `?`) of the program's file name, NUL padded; all NUL = any.
    pub program: [u8; PROGRAM_LEN],
    /// Which end; none = both.
    pub role: Option<Role>,
    /// User of the process; none = any.
    pub uid: Option<u32>,
    /// Where the local or the peer's address must lie; none = anywhere.
    pub addr: Option<Prefix>,
    /// The service's port; none = any.
    pub ports: Option<PortRange>,
}

impl Rule {
    /// The pattern of the program's name, empty for any.
    pub fn pattern(&self) -> &[u8] {
        let end = self.program.iter().position(|b| *b == 0);
        self.program.get(..end.unwrap_or(PROGRAM_LEN)).unwrap_or(&[])
    }

    /// Sets the pattern; false if it is too long or has what no name of a program has here (a control character, `/`, `;`), and then
    /// nothing is changed.
    pub fn set_pattern(&mut self, pattern: &[u8]) -> bool {
        if pattern.len() >= PROGRAM_LEN || pattern.iter().any(|b| b.is_ascii_control() || b"/;".contains(b)) {
            return false;
        }
        self.program = [0; PROGRAM_LEN];
        self.program.iter_mut().zip(pattern).for_each(|(to, from)| *to = *from);
        true
    }
}

/// True if `name` is what `pattern` describes: `*` any run of bytes, `?` one byte.
pub fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == b'?' || Some(c) == name.get(n) => {
                p += 1;
                n += 1;
            }
            _ => {
                // Let the last star take one byte more, and try again behind it.
                let Some((at, taken)) = star else {
                    return false;
                };
                star = Some((at, taken + 1));
                p = at + 1;
                n = taken + 1;
            }
        }
    }
    pattern.iter().skip(p).all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        let yes: [(&str, &str); 7] =
            [("redis*", "redis-server"), ("*", ""), ("n?inx", "nginx"), ("*a*b", "xaybzab"), ("exact", "exact"), ("**", "a"), ("", "")];
        for (pattern, name) in yes {
            assert!(glob(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in [("redis", "redis-server"), ("?", ""), ("a*c", "ab"), ("", "a")] {
            assert!(!glob(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }
}
