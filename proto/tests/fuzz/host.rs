//! What the fuzzers call for the parsers of one host: the channel between two processes, the shared pages, cursors of
//! a ring, and the settings' text.

use smcr_proto::control::{self, Attribute, LEN, Layer, Page, Policy};
use smcr_proto::cursor;
use smcr_proto::page::link;
use smcr_proto::register::{Bequest, Legacy, announced, announcement};
use smcr_proto::rendezvous::{MAX_MESSAGE, Message, agree};
use smcr_proto::way_back::{self, WayBack};

/// What is read as a message of the channel survives being emitted. The first eight bytes are also what stands on a socket.
pub fn channel(data: &[u8]) {
    on_a_socket(number(data, 0));
    if let Ok((message, page)) = Message::parse(data) {
        let mut out = [0; MAX_MESSAGE];
        let n = message.emit(&mut out, page);
        assert_eq!(Message::parse(&out[..n]), Ok((message, page)));
        if let Message::Offer(offer) = message {
            let _ = (agree(offer.versions), announced(offer.rate));
        }
    }
}

/// An announcement, what a process leaves for its heir, or neither.
fn on_a_socket(rate: u64) {
    let (name, legacy, bequest) = (announced(rate), Legacy::parse(rate), Bequest::parse(rate));
    assert!([name.is_some(), legacy.is_some(), bequest.is_some()].iter().filter(|is| **is).count() <= 1);
    assert!(bequest.is_none_or(|bequest| bequest.rate() == Some(rate)));
    assert!(name.is_none_or(|name| announcement(name) == rate));
    assert!(legacy.is_none_or(|legacy| legacy.rate() == Some(rate)));
}

/// A way back is exactly the bytes that it is, and never leads beyond what was sent.
pub fn way_back(data: &[u8]) {
    let Some((bytes, rest)) = data.split_first_chunk::<{ way_back::LEN }>() else { return };
    let Some(message) = WayBack::parse(bytes) else { return };
    assert_eq!(message.emit(), *bytes);
    let (taken, sent) = (number(rest, 0), number(rest, 8));
    if let Some(from) = message.resume(taken, sent) {
        assert!(taken <= from && from <= sent);
    }
}

/// Patches of three bytes (place and value) to a page that sets everything: it is refused, or it is a page.
pub fn control_page(data: &[u8]) {
    let mut image = [0; LEN];
    control::emit(&Page { layer: settled(), ..Page::default() }, &mut image);
    assert!(control::parse(&image).is_ok());
    for patch in data.chunks_exact(3) {
        image[usize::from(u16::from_le_bytes([patch[0], patch[1]])) % LEN] = patch[2];
    }
    if let Ok(page) = control::parse(&image) {
        let mut again = [0; LEN];
        control::emit(&page, &mut again);
        assert_eq!(control::parse(&again), Ok(page));
    }
    let _ = control::parse(data);
}

/// A text for each attribute, in their order.
const TEXTS: [&str; Attribute::ALL.len()] = [
    "1",
    "shm",
    "1",
    "50",
    "64",
    "3",
    "4096",
    "1-20,23,50",
    "10.0.0.0/8,fe80::1,192.0.2.1",
    "use=tcp program=redis* role=server uid=0 addr=10.0.0.0/8 port=1-2; use=smcr",
    "A.B-1,C",
    "1000",
];

/// A layer that sets each attribute.
fn settled() -> Layer {
    let mut layer = Layer::default();
    for (attribute, text) in Attribute::ALL.iter().zip(TEXTS) {
        let mut values = Policy::default();
        assert!(values.parse(*attribute, text).is_ok(), "{attribute:?}");
        layer.set(*attribute, &values);
    }
    layer
}

/// The first byte names an attribute, the rest is its text: refused, or a value that survives in a page.
pub fn settings(data: &[u8]) {
    let Some((which, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let attribute = Attribute::ALL[usize::from(*which) % Attribute::ALL.len()];
    let mut values = Policy::default();
    match values.parse(attribute, text) {
        Ok(()) => {
            let mut page = Page::default();
            page.layer.set(attribute, &values);
            let mut image = [0; LEN];
            control::emit(&page, &mut image);
            assert_eq!(control::parse(&image), Ok(page));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What is read as the record of a link group survives being written.
pub fn link_record(data: &[u8]) {
    if let Some(record) = link::Record::parse(data) {
        let words = record.words();
        let bytes: Vec<u8> = [0; 8].into_iter().chain(words[1..].iter().flat_map(|w| w.to_ne_bytes())).collect();
        assert_eq!(link::Record::parse(&bytes), Some(record));
    }
}

/// A peer claims positions, one after the other; whatever they are, no byte outside the ring is touched. Each
/// claim is a byte (how much is taken of what is there) and eight of a position.
pub fn ring(data: &[u8]) {
    let Some((size, claims)) = data.split_first() else { return };
    let size = 4096usize << (size % 7);
    let (mut tail, mut head) = (0u64, 0u64);
    for claim in claims.chunks_exact(9) {
        let position = number(claim, 1);
        // As the consumer: the producer claims a head.
        if let Some(n) = cursor::readable(position, tail, size) {
            assert!(n <= size);
            let take = n.min(usize::from(claim[0]) << 8);
            let at = cursor::offset(tail, 0, size);
            let first = take.min(size - at);
            assert!(at < size && at + first <= size && take - first <= at);
            tail += take as u64;
        }
        // As the producer: the consumer claims a tail.
        if let Some(room) = cursor::writable(head, position, size) {
            assert!(room <= size);
            head += room.min(usize::from(claim[0]) << 8) as u64;
            assert!(cursor::readable(head, position, size).is_some());
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
