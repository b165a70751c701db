//! Tests of the control page as a whole: bytes there and back, hostile bytes, change under readers.

extern crate alloc;
extern crate std;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;

/// The default, but for these attributes.
pub(super) fn with(settings: &[(Attribute, &'static str)]) -> Policy {
    let mut policy = Policy::default();
    for (attribute, text) in settings {
        policy.parse(*attribute, text).unwrap();
    }
    policy
}

fn full() -> Page {
    let texts = [
        (Attribute::Enabled, "0"),
        (Attribute::Mode, "shm"),
        (Attribute::Strict, "1"),
        (Attribute::SpinUs, "77"),
        (Attribute::MaxMemory, "12"),
        (Attribute::SwitchOps, "5"),
        (Attribute::SwitchBytes, "4294967296"),
        (Attribute::PortRangeList, "1-20,23,65535"),
        (Attribute::IpAddrList, "10.0.0.0/8,fe80::/64,::1"),
        (Attribute::Rules, "use=tcp program=redis*; use=smcr role=client uid=0 addr=::/0 port=1-9"),
        (Attribute::UserEids, "A.B-1,ABCDEFGHIJKLMNOPQRSTUVWXYZ012345"),
        (Attribute::PeerUid, "7"),
    ];
    let mut page = Page::default();
    for (attribute, text) in texts {
        page.layer.set(attribute, &with(&[(attribute, text)]));
    }
    page.drains.push(Target::Port(80));
    page.drains.push(Target::Process { pid: 9, start: 1 << 40 });
    page
}

fn image(page: &Page) -> [u8; LEN] {
    let mut image = [0; LEN];
    emit(page, &mut image);
    image
}

fn mapping() -> Vec<AtomicU64> {
    (0..WORDS).map(|_| AtomicU64::new(0)).collect()
}

#[test]
fn what_is_written_is_read() {
    for page in [Page::default(), full()] {
        assert_eq!(parse(&image(&page)), Ok(page));
    }
}

#[test]
fn the_layout_is_as_published() {
    let bytes = image(&full());
    assert_eq!(&bytes[..8], b"SMCRCTL\0");
    assert_eq!(&bytes[8..16], &[1, 0, 0, 0, 0, 32, 0, 0]);
    assert_eq!(&bytes[76..80], &[77, 0, 0, 0]);
    assert_eq!(&bytes[256..268], &[1, 0, 20, 0, 23, 0, 23, 0, 255, 255, 255, 255]);
    assert_eq!(&bytes[512..516], &[10, 0, 0, 0]);
    assert_eq!(&bytes[528..530], &[4, 8]);
    assert_eq!((offset::EIDS, offset::DRAINS, offset::RULES), (1792, 2048, 2176));
    assert_eq!(&bytes[2176..2182], b"redis*");
}

#[test]
fn a_newer_page_says_so() {
    let mut bytes = image(&full());
    bytes[offset::VERSION] = 2;
    assert_eq!(parse(&bytes), Err(PageError::Newer(2)));
    assert_eq!(parse(&bytes[..64]), Err(PageError::Newer(2)));
}

#[test]
fn no_bytes_make_it_panic() {
    let good = image(&full());
    for len in 0..LEN {
        assert!(parse(&good[..len]).is_err(), "{len}");
    }
    // Each byte in turn with values at the edges; then many bytes at once.
    for at in 0..offset::END {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = good;
            bytes[at] = value;
            let _ = parse(&bytes);
        }
    }
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..20_000 {
        let mut bytes = good;
        for _ in 0..8 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes[(seed >> 33) as usize % LEN] = (seed >> 24) as u8;
        }
        if let Ok(page) = parse(&bytes) {
            assert_eq!(parse(&image(&page)), Ok(page));
        }
    }
}

#[test]
fn impossible_values_are_named() {
    for (at, value, name) in [
        (offset::MODE, 4, "mode"),
        (offset::ENABLED, 2, "enabled"),
        (offset::PORT_COUNT, 65, "port_range_list"),
        (offset::SET + 4, 1, "set"),
        (offset::RULES + 41, 9, "rules"),
        (offset::EIDS, b'a', "user_eids"),
        (offset::ADDRS + 1, 1, "ip_addr_list"),
        (offset::LENGTH, 1, "length"),
    ] {
        let mut bytes = image(&full());
        bytes[at] = value;
        assert_eq!(parse(&bytes), Err(PageError::Field(name)), "{at}");
    }
}

#[test]
fn a_dead_writer_is_noticed_and_repaired() {
    let page = mapping();
    assert_eq!(store(&page, &image(&full())), 2);
    page[GENERATION].store(3u64.to_le(), Ordering::Relaxed);
    assert_eq!(read(&page), Err(ReadError::Busy));
    assert_eq!(store(&page, &image(&full())), 4);
    assert_eq!(read(&page), Ok((4, full())));
    assert_eq!(read(&page[..10]), Err(ReadError::Page(PageError::TooShort(80))));
}

#[test]
fn readers_never_see_half_a_change() {
    let page = Arc::new(mapping());
    let done = Arc::new(AtomicBool::new(false));
    store(&page, &image(&Page::default()));
    let writer = std::thread::spawn({
        let (page, done) = (page.clone(), done.clone());
        move || {
            let images = [image(&full()), image(&Page::default())];
            for round in 0..2000 {
                store(&page, &images[round % 2]);
                if round % 8 == 0 {
                    std::thread::yield_now();
                }
            }
            done.store(true, Ordering::Relaxed);
        }
    });
    let (mut whole, mut last) = (0, 0);
    while !done.load(Ordering::Relaxed) || whole == 0 {
        if let Ok((generation, got)) = read(&page) {
            assert!(got == full() || got == Page::default());
            assert!(generation >= last);
            last = generation;
            whole += 1;
        }
    }
    writer.join().unwrap();
    assert_eq!(generation(&page), 2 + 2 * 2000);
}
