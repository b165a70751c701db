//! What the fuzzers call with the family page of a process that is not trusted. Used by the bounded run beside this file and by
//! `fuzz/fuzz_targets/family_page.rs`, which have `family` beside it too.

use std::fs::File;
use std::io::Write;

use nix::sys::memfd::{MFdFlags, memfd_create};
use smcr_proto::page::{COUNTERS, header, link, process, socket};

use super::src::family::Family;

/// Bytes of the header that an input begins with. What follows them lies behind the header, so that an input is short.
const HEAD: usize = 64;

/// A page is refused in one line, or shows no more than it has room for, the same each time.
pub fn family_page(data: &[u8]) {
    let (head, rest) = data.split_at(data.len().min(HEAD));
    let mut bytes = head.to_vec();
    if !rest.is_empty() {
        bytes.resize(header::LEN, 0);
        bytes.extend(rest);
    }
    let page = file(&bytes);
    let family = match Family::read(&page) {
        Ok(family) => family,
        Err(error) => {
            let said = error.to_string();
            assert!(!said.is_empty() && !said.contains('\n'), "{said:?}");
            return;
        }
    };
    for (records, least) in [(family.processes.len(), process::COUNTERS), (family.sockets.len(), socket::PUBLIC_LEN), (family.links.len(), link::LEN)]
    {
        assert!(records * least <= bytes.len(), "{records} records of {least} bytes in {}", bytes.len());
    }
    for process in &family.processes {
        assert!(process.pid != 0 && process.counters.len() == COUNTERS.len() && process.name.chars().count() <= 16);
        assert!(process.fallbacks.len() <= process::FALLBACK_CAP);
        let _ = (process.version(), process.is_of_the_gone());
    }
    for socket in &family.sockets {
        assert!(socket.in_flight() <= socket.tx_ring.into() && socket.unread() <= socket.rx_ring.into());
        for word in [socket.state_word(), socket.mode_word(), socket.reason_word()] {
            // With spaces in some reasons.
            assert!(word.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) && !word.is_empty(), "{word:?}");
        }
    }
    for (process, _) in &family.links {
        assert!(family.processes.iter().any(|p| p.index >= *process), "of process record {process}");
    }
    let again = Family::read(&page).expect("it has not changed");
    assert_eq!(format!("{family:?}"), format!("{again:?}"));
}

fn file(bytes: &[u8]) -> File {
    let mut file = File::from(memfd_create("page", MFdFlags::MFD_CLOEXEC).expect("a memfd"));
    file.write_all(bytes).expect("a page");
    file
}
