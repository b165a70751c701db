//! The IPv4 addresses of this network namespace and their subnets, as rtnetlink tells them: each of an interface, where
//! ioctl shows the first alone. Used by `verbs::port`.

use super::few::Brief;
use super::{Errno, Res, net};

/// Each address with the length of its prefix.
pub struct Addresses(Vec<([u8; 4], u8)>);

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const ALL: u16 = 0x301;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

impl Addresses {
    /// As they are now; none where the kernel does not tell.
    pub fn now() -> Addresses {
        Addresses(dump().unwrap_or_default())
    }

    /// Whether `other` lies in the subnet of `own`, an address of this host.
    pub fn share_subnet(&self, own: [u8; 4], other: [u8; 4]) -> bool {
        let differ = u32::from_be_bytes(own) ^ u32::from_be_bytes(other);
        let in_it = |prefix: u8| prefix > 0 && differ.checked_shr(32 - u32::from(prefix.min(32))).unwrap_or(0) == 0;
        self.0.iter().any(|(address, prefix)| *address == own && in_it(*prefix))
    }
}

fn dump() -> Res<Vec<([u8; 4], u8)>> {
    ask(Brief::open(|| net::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE))?.fd())
}

fn ask(nl: i32) -> Res<Vec<([u8; 4], u8)>> {
    // nlmsghdr: length, type, flags, sequence, port id; ifaddrmsg: family, and what counts in answers only.
    let mut req = [0u8; 24];
    req[..4].copy_from_slice(&24u32.to_ne_bytes());
    req[4..6].copy_from_slice(&RTM_GETADDR.to_ne_bytes());
    req[6..8].copy_from_slice(&ALL.to_ne_bytes());
    req[16] = libc::AF_INET as u8;
    net::send_slice(nl, &req, 0)?;
    let mut found = Vec::new();
    let mut buf = vec![0u8; 32 << 10];
    loop {
        match net::recv_slice(nl, &mut buf, 0) {
            Ok(0) => return Err(Errno(libc::EBADMSG)),
            Ok(n) if take(&buf[..n], &mut found)? => return Ok(found),
            Ok(_) | Err(Errno(libc::EINTR)) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Takes the addresses of one answer; true: it was the last.
fn take(mut answer: &[u8], found: &mut Vec<([u8; 4], u8)>) -> Res<bool> {
    while answer.len() >= 16 {
        let len = u32_at(answer, 0).map_or(0, |n| n as usize);
        if len < 16 || len > answer.len() {
            return Err(Errno(libc::EBADMSG));
        }
        let message = &answer[..len];
        match u16_at(message, 4) {
            Some(NLMSG_DONE) => return Ok(true),
            Some(NLMSG_ERROR) => return Err(Errno(u32_at(message, 16).map_or(libc::EBADMSG, |e| -(e as i32)))),
            Some(RTM_NEWADDR) => found.extend(address(message)),
            _ => {}
        }
        answer = &answer[len.next_multiple_of(4).min(answer.len())..];
    }
    Ok(false)
}

/// What a message says of one address: ifaddrmsg (family, prefix, flags, scope, interface), then attributes.
fn address(message: &[u8]) -> Option<([u8; 4], u8)> {
    let (family, prefix) = (*message.get(16)?, *message.get(17)?);
    let mut at = 24;
    let (mut local, mut subnet) = (None, None);
    while let (Some(len), Some(kind)) = (u16_at(message, at), u16_at(message, at + 2)) {
        let value = message.get(at + 4..at + usize::from(len))?;
        match kind {
            IFA_LOCAL => local = value.try_into().ok(),
            IFA_ADDRESS => subnet = value.try_into().ok(),
            _ => {}
        }
        at += usize::from(len).max(4).next_multiple_of(4);
    }
    (i32::from(family) == libc::AF_INET).then_some((local.or(subnet)?, prefix))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_the_subnet_of_the_loopback() {
        let all = Addresses::now();
        assert!(all.share_subnet([127, 0, 0, 1], [127, 1, 2, 3]));
        assert!(!all.share_subnet([127, 0, 0, 1], [10, 1, 2, 3]));
        assert!(!all.share_subnet([192, 0, 2, 77], [192, 0, 2, 78]), "nobody's address");
    }

    #[test]
    fn each_address_counts_with_its_own_prefix() {
        let all = Addresses(vec![([10, 0, 0, 1], 24), ([10, 9, 0, 1], 31), ([10, 8, 0, 1], 32), ([10, 7, 0, 1], 0)]);
        let near = |own: [u8; 4], last: u8| all.share_subnet(own, [own[0], own[1], own[2], last]);
        assert!(near([10, 0, 0, 1], 200) && !all.share_subnet([10, 0, 0, 1], [10, 0, 1, 1]));
        assert!(near([10, 9, 0, 1], 0) && !near([10, 9, 0, 1], 2));
        assert!(near([10, 8, 0, 1], 1) && !near([10, 8, 0, 1], 0));
        assert!(!near([10, 7, 0, 1], 1), "no subnet at all");
    }

    #[test]
    fn no_answer_makes_it_panic() {
        let mut good = vec![0u8; 24];
        good[..2].copy_from_slice(&40u16.to_ne_bytes());
        good[4..6].copy_from_slice(&RTM_NEWADDR.to_ne_bytes());
        (good[16], good[17]) = (libc::AF_INET as u8, 24);
        for (kind, value) in [(IFA_ADDRESS, [10, 0, 0, 9]), (IFA_LOCAL, [10, 0, 0, 1])] {
            good.extend([8u16.to_ne_bytes(), kind.to_ne_bytes()].concat());
            good.extend(value);
        }
        let mut found = Vec::new();
        assert_eq!(take(&good, &mut found), Ok(false));
        assert_eq!(found, [([10, 0, 0, 1], 24)]);
        for at in 0..good.len() {
            for value in [0, 1, 3, 7, 255] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = take(&bad, &mut found);
                let _ = take(&bad[..at], &mut found);
            }
        }
    }
}
