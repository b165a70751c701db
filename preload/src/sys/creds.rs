//! What the kernel lets this process do: users, groups and capabilities, to be compared before and after a call.
//!
//! Used by the hooks of setuid(2) and its relatives, and by `rendezvous::owner`.

use super::{Res, Sysno, call};

/// Supplementary groups that are compared; with more of them every change counts as one.
const GROUPS: usize = 256;
/// _LINUX_CAPABILITY_VERSION_3.
const CAPABILITIES: u32 = 0x2008_0522;

/// Users, groups and capabilities of the calling thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    users: [u32; 3],
    groups: [u32; 3],
    /// None: too many to be compared.
    others: Option<([u32; GROUPS], usize)>,
    /// Effective, permitted, inheritable; twice.
    capabilities: [u32; 6],
}

impl Credentials {
    /// As they are now. An error where the process may not ask.
    pub fn now() -> Res<Credentials> {
        Ok(Credentials { users: three(Sysno::getresuid)?, groups: three(Sysno::getresgid)?, others: others(), capabilities: capabilities()? })
    }

    /// Real, effective and saved user: those that the process can be.
    pub fn users(&self) -> [u32; 3] {
        self.users
    }

    /// Whether a process with these may do other things than one with those.
    pub fn differ_from(&self, old: &Credentials) -> bool {
        self != old || self.others.is_none()
    }
}

/// Whether each user has a number of its own here. In most user namespaces all that are not mapped into it look alike.
pub fn sees_all_users() -> bool {
    let mut buf = [0u8; 128];
    let Ok(map) = super::fd::read_file(c"/proc/self/uid_map", &mut buf) else { return false };
    let mut fields = map.split(u8::is_ascii_whitespace).filter(|f| !f.is_empty());
    fields.next() == Some(b"0") && fields.next() == Some(b"0") && fields.next() == Some(b"4294967295")
}

fn three(nr: Sysno) -> Res<[u32; 3]> {
    let mut ids = [0u32; 3];
    let [a, b, c] = &mut ids;
    let args = [a, b, c].map(|p| std::ptr::from_mut(p) as usize);
    // SAFETY: the kernel writes three numbers.
    unsafe { call(nr, [args[0], args[1], args[2], 0, 0, 0]) }?;
    Ok(ids)
}

fn others() -> Option<([u32; GROUPS], usize)> {
    let mut ids = [0u32; GROUPS];
    // SAFETY: the kernel writes at most so many numbers, and refuses where there are more.
    let n = unsafe { call(Sysno::getgroups, [GROUPS, ids.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    Some((ids, n))
}

fn capabilities() -> Res<[u32; 6]> {
    let head = [CAPABILITIES, 0];
    let mut sets = [0u32; 6];
    let args = [head.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: a header of this version, and room for the two parts that it has.
    unsafe { call(Sysno::capget, args) }?;
    Ok(sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_changed_is_no_difference() {
        let (a, b) = (Credentials::now().expect("asked"), Credentials::now().expect("asked"));
        assert!(!a.differ_from(&b));
    }

    #[test]
    fn every_part_counts() {
        let now = Credentials::now().expect("asked");
        let changes: [fn(&mut Credentials); 5] =
            [|c| c.users[2] ^= 1, |c| c.groups[0] ^= 1, |c| c.others = None, |c| c.others = Some(([7; GROUPS], GROUPS)), |c| c.capabilities[1] ^= 1];
        for change in changes {
            let mut other = now.clone();
            change(&mut other);
            assert!(other.differ_from(&now), "{other:?}");
        }
    }
}
