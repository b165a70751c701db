//! Records of the links of link groups in the family page: what `smcrctl linkgroup` shows.
//!
//! An array of its own behind the sockets ([`super::header::LINK_OFF`]); process record number N has the
//! records N * [`EACH`] and following. The first word counts up with every change and is odd while the
//! library writes, so a reader that sees the same even number before and after has a whole record.

/// Records of each process; links beyond them are not shown.
pub const EACH: usize = 16;
/// Bytes of a record.
pub const LEN: usize = 256;
/// Words of a record.
pub const WORDS: usize = LEN / 8;

/// Which end made the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Role {
    /// Not known.
    #[default]
    Unknown = 0,
    /// This process connected.
    Client = 1,
    /// This process accepted.
    Server = 2,
}

impl Role {
    /// As smc-tools call it.
    pub const fn label(self) -> &'static str {
        match self {
            Role::Unknown => "n/a",
            Role::Client => "CLNT",
            Role::Server => "SERV",
        }
    }
}

/// A link of a link group, as its process shows it; two of a group have the same number `id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Number of the group in the process, from 1.
    pub id: u32,
    /// The process as it sees itself: a record of one that has gone may lie where a new one begins.
    pub pid: u32,
    /// Which end made it.
    pub role: Role,
    /// SMC version, 1 or 2.
    pub version: u8,
    /// Port of the device, from 1.
    pub port: u8,
    /// Number of the link in the group.
    pub link: u8,
    /// Whether the link was confirmed and carries data.
    pub is_active: bool,
    /// Connections that use it.
    pub connections: u32,
    /// Queue pair of this end.
    pub qpn: u32,
    /// Queue pair of the peer.
    pub peer_qpn: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Bytes of each ring that the peer writes into.
    pub rmb: u32,
    /// Address of this end.
    pub gid: [u8; 16],
    /// Address of the peer.
    pub peer_gid: [u8; 16],
    /// Peer ID of the peer: its process.
    pub peer_id: [u8; 8],
    /// Name of the device, NUL padded.
    pub device: [u8; 32],
    /// User EID that was agreed, space padded; NULs in version 1.
    pub eid: [u8; 32],
    /// Payload bytes sent and received over it.
    pub bytes: [u64; 2],
    /// Messages sent and received over it (CDC and LLC).
    pub messages: [u64; 2],
}

/// Where the record has what (bytes).
mod field {
    pub const GENERATION: usize = 0;
    pub const ID: usize = 8;
    /// role, version, port, link
    pub const SMALL: usize = 12;
    pub const ACTIVE: usize = 16;
    pub const CONNECTIONS: usize = 20;
    pub const QPN: usize = 24;
    pub const PEER_QPN: usize = 28;
    pub const MTU: usize = 32;
    pub const RMB: usize = 36;
    pub const GID: usize = 40;
    pub const PEER_GID: usize = 56;
    pub const PEER_ID: usize = 72;
    pub const DEVICE: usize = 80;
    pub const EID: usize = 112;
    pub const BYTES: usize = 144;
    pub const MESSAGES: usize = 160;
    pub const PID: usize = 176;
}

impl Record {
    /// The record's words but the first, which is the writer's count.
    pub fn words(&self) -> [u64; WORDS] {
        let mut raw = [0u8; LEN];
        let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
        put(field::SMALL, &[self.role as u8, self.version, self.port, self.link]);
        for (at, value) in [
            (field::ID, self.id),
            (field::PID, self.pid),
            (field::ACTIVE, u32::from(self.is_active)),
            (field::CONNECTIONS, self.connections),
            (field::QPN, self.qpn),
            (field::PEER_QPN, self.peer_qpn),
            (field::MTU, self.mtu),
            (field::RMB, self.rmb),
        ] {
            put(at, &value.to_le_bytes());
        }
        put(field::GID, &self.gid);
        put(field::PEER_GID, &self.peer_gid);
        put(field::PEER_ID, &self.peer_id);
        put(field::DEVICE, &self.device);
        put(field::EID, &self.eid);
        for (i, (bytes, messages)) in self.bytes.iter().zip(&self.messages).enumerate() {
            put(field::BYTES + 8 * i, &bytes.to_le_bytes());
            put(field::MESSAGES + 8 * i, &messages.to_le_bytes());
        }
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(raw.chunks_exact(8)) {
            *word = u64::from_ne_bytes(array(bytes, 0));
        }
        words
    }

    /// Reads a record; None if it is not in use, is being written, or is cut.
    pub fn parse(raw: &[u8]) -> Option<Record> {
        let raw = raw.get(..LEN)?;
        let u32_at = |at| u32::from_le_bytes(array(raw, at));
        let u64_at = |at| u64::from_le_bytes(array(raw, at));
        if u64_at(field::GENERATION) % 2 == 1 || u32_at(field::ID) == 0 {
            return None;
        }
        let [role, version, port, link] = array(raw, field::SMALL);
        Some(Record {
            id: u32_at(field::ID),
            pid: u32_at(field::PID),
            role: match role {
                1 => Role::Client,
                2 => Role::Server,
                _ => Role::Unknown,
            },
            version,
            port,
            link,
            is_active: u32_at(field::ACTIVE) != 0,
            connections: u32_at(field::CONNECTIONS),
            qpn: u32_at(field::QPN),
            peer_qpn: u32_at(field::PEER_QPN),
            mtu: u32_at(field::MTU),
            rmb: u32_at(field::RMB),
            gid: array(raw, field::GID),
            peer_gid: array(raw, field::PEER_GID),
            peer_id: array(raw, field::PEER_ID),
            device: array(raw, field::DEVICE),
            eid: array(raw, field::EID),
            bytes: [u64_at(field::BYTES), u64_at(field::BYTES + 8)],
            messages: [u64_at(field::MESSAGES), u64_at(field::MESSAGES + 8)],
        })
    }
}

/// Part of a slice; zeros where it is too short.
fn array<const N: usize>(raw: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(part) = raw.get(at..at + N) {
        out.copy_from_slice(part);
    }
    out
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn a_record_survives_and_one_being_written_is_left_out() {
        let record = Record {
            id: 3,
            pid: 77,
            role: Role::Server,
            version: 2,
            port: 1,
            link: 1,
            is_active: true,
            connections: 100,
            qpn: 0x11,
            peer_qpn: 0x12,
            mtu: 1024,
            rmb: 65536,
            gid: [1; 16],
            peer_gid: [2; 16],
            peer_id: [3; 8],
            device: [b'r'; 32],
            eid: [b'E'; 32],
            bytes: [4, 5],
            messages: [6, 7],
        };
        let mut raw: std::vec::Vec<u8> = record.words().iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(Record::parse(&raw), Some(record));
        raw[0] = 1;
        assert_eq!(Record::parse(&raw), None);
        raw[0] = 2;
        assert_eq!(Record::parse(&raw), Some(record));
        assert_eq!(Record::parse(&raw[..LEN - 1]), None);
        assert_eq!(Record::parse(&[0; LEN]), None);
    }
}
