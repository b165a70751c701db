//! setuid, setgid, setgroups and their relatives, capset and unshare: a process that may do other things afterwards than its
//! relatives shares nothing of the library's with them any more (`table::apart`).
//!
//! With relatives, or peers that know it by its user, alone: else the call is passed through, at the price of some loads. initgroups calls setgroups inside libc.

use super::{guarded, hooks};
use crate::real;
use crate::sys::creds::Credentials;
use crate::sys::{errno, set_errno};
use crate::table::apart;
use libc::{c_char, c_int, c_void, gid_t, size_t, uid_t};

macro_rules! passed {
    ($($name:ident($($a:ident: $t:ty),*);)*) => {
        hooks! {$(
            fn $name($($a: $t),*) -> c_int {
                // SAFETY: the program's arguments.
                changing(|| unsafe { real::$name($($a),*) })
            }
        )*}
    };
}

passed! {
    setuid(user: uid_t);
    seteuid(user: uid_t);
    setreuid(real: uid_t, effective: uid_t);
    setresuid(real: uid_t, effective: uid_t, saved: uid_t);
    setgid(group: gid_t);
    setegid(group: gid_t);
    setregid(real: gid_t, effective: gid_t);
    setresgid(real: gid_t, effective: gid_t, saved: gid_t);
    setgroups(n: size_t, groups: *const gid_t);
    initgroups(user: *const c_char, group: gid_t);
    capset(head: *mut c_void, data: *const c_void);
    unshare(flags: c_int);
}

/// Makes a call that may change what the process may do.
pub fn changing<R>(call: impl FnOnce() -> R) -> R {
    if !apart::is_due() {
        return call();
    }
    let before = Credentials::now();
    let result = call();
    let e = errno();
    guarded(|| {
        let now = Credentials::now();
        let same = matches!((&before, &now), (Ok(old), Ok(now)) if !now.differ_from(old));
        if !same {
            apart::leave();
        }
        match (&before, &now) {
            (Ok(old), Ok(now)) if old.users() == now.users() => {}
            (_, now) => apart::part_from_kin(now.as_ref().map_or([u32::MAX; 3], Credentials::users)),
        }
    });
    set_errno(e);
    result
}
