//! Asks the kernel's sock_diag for the listening TCP sockets, as a test that it answers: without
//! it the library cannot prove its peers. Used by `check`.

use std::os::fd::AsRawFd;

use anyhow::{Context, bail};
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const REQUEST_AND_DUMP: u16 = 0x301;
const HEADER: usize = 16;
const LENGTH: usize = HEADER + 56;
/// Bit of the state LISTEN.
const LISTENING: u32 = 1 << 10;

pub fn answers() -> anyhow::Result<()> {
    let socket = socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)
        .context("cannot open a netlink socket")?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(2))?;
    let kernel = NetlinkAddr::new(0, 0);
    sendto(socket.as_raw_fd(), &request(), &kernel, MsgFlags::empty()).context("cannot ask")?;
    let mut answer = vec![0; 32 * 1024];
    let got = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()).context("no answer")?;
    match understand(&answer[..got]) {
        None => bail!("the answer is cut off"),
        Some(0) => Ok(()),
        Some(error) => bail!("refused: {}", std::io::Error::from_raw_os_error(error)),
    }
}

/// struct nlmsghdr and struct inet_diag_req_v2.
fn request() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &(LENGTH as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &REQUEST_AND_DUMP.to_ne_bytes());
    put(HEADER, &[nix::libc::AF_INET as u8, nix::libc::IPPROTO_TCP as u8]);
    put(HEADER + 4, &LISTENING.to_ne_bytes());
    bytes
}

/// The error number in an answer, 0 for a good one.
fn understand(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    if kind != NLMSG_ERROR {
        return Some(0);
    }
    let code = i32::from_ne_bytes(*answer.get(HEADER..)?.first_chunk()?);
    Some(code.saturating_neg())
}
