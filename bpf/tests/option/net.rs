//! Sockets, packets and namespaces, as thin as the cases need them.

use std::fs::{self, File};
use std::io::{self, Error};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{Uid, seteuid};
use smcr_bpf::abi::{LEVEL, MARK, VERDICT};

/// A raw socket address with its length.
struct Address(libc::sockaddr_storage, libc::socklen_t);

impl Address {
    fn new(from: SocketAddr) -> Self {
        // SAFETY: all zeroes is a sockaddr_storage.
        let mut to: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let length = match from {
            SocketAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is larger and as strictly aligned as each of its forms.
                unsafe { (&raw mut to).cast::<libc::sockaddr_in>().write(raw) };
                size_of_val(&raw)
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: 0,
                };
                // SAFETY: sockaddr_storage is larger and as strictly aligned as each of its forms.
                unsafe { (&raw mut to).cast::<libc::sockaddr_in6>().write(raw) };
                size_of_val(&raw)
            }
        };
        Address(to, length as libc::socklen_t)
    }

    fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.0).cast()
    }
}

/// A socket of any kind.
pub struct Sock(OwnedFd);

fn check(result: isize) -> io::Result<isize> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

impl Sock {
    pub fn new(domain: i32, kind: i32) -> Sock {
        Sock::try_new(domain, kind).expect("socket")
    }

    pub fn try_new(domain: i32, kind: i32) -> Option<Sock> {
        // SAFETY: no pointers; the descriptor is new.
        let fd = check(unsafe { libc::socket(domain, kind, 0) } as isize).ok()?;
        // SAFETY: the descriptor was made above, and nobody else has it.
        Some(Sock(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    pub fn tcp(address: SocketAddr) -> Sock {
        let domain = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        Sock::new(domain, libc::SOCK_STREAM)
    }

    pub fn set(&self, level: i32, name: i32, value: u32) -> io::Result<()> {
        let (fd, value) = (self.0.as_raw_fd(), (&raw const value).cast());
        // SAFETY: the option is four bytes long, and so is what is pointed to.
        let result = unsafe { libc::setsockopt(fd, level, name, value, 4) };
        check(result as isize).map(drop)
    }

    pub fn get(&self, level: i32, name: i32) -> io::Result<u32> {
        let (mut value, mut length) = (0u32, 4);
        let pointer = (&raw mut value).cast();
        let fd = self.0.as_raw_fd();
        // SAFETY: the kernel writes at most the four bytes that `length` says.
        let result = unsafe { libc::getsockopt(fd, level, name, pointer, &mut length) };
        check(result as isize)?;
        Ok(value)
    }

    /// As an ordinary user, who has no capability.
    pub fn mark(&self, on: bool) -> io::Result<()> {
        as_nobody(|| self.set(LEVEL, MARK, on.into()))
    }

    pub fn marked(&self) -> u32 {
        as_nobody(|| self.get(LEVEL, MARK)).expect("ask for the mark")
    }

    pub fn verdict(&self) -> u32 {
        as_nobody(|| self.get(LEVEL, VERDICT)).expect("ask for the verdict")
    }

    pub fn bind(&self, address: SocketAddr) {
        let address = Address::new(address);
        // SAFETY: pointer and length are of one address.
        check(unsafe { libc::bind(self.0.as_raw_fd(), address.pointer(), address.1) } as isize).expect("bind");
    }

    pub fn listen(&self, backlog: i32) {
        // SAFETY: no pointers.
        check(unsafe { libc::listen(self.0.as_raw_fd(), backlog) } as isize).expect("listen");
    }

    pub fn port(&self) -> u16 {
        // SAFETY: all zeroes is a sockaddr_storage.
        let mut raw: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let (fd, to, mut length) = (self.0.as_raw_fd(), (&raw mut raw).cast(), 128);
        // SAFETY: the kernel writes at most the 128 bytes that `length` says, the size of `raw`.
        let result = unsafe { libc::getsockname(fd, to, &mut length) };
        check(result as isize).expect("getsockname");
        // SAFETY: both forms have the port in the same place.
        u16::from_be(unsafe { (&raw const raw).cast::<libc::sockaddr_in>().read() }.sin_port)
    }

    pub fn connect(&self, address: SocketAddr) -> io::Result<()> {
        let address = Address::new(address);
        // SAFETY: pointer and length are of one address.
        check(unsafe { libc::connect(self.0.as_raw_fd(), address.pointer(), address.1) } as isize).map(drop)
    }

    /// connect(AF_UNSPEC): the socket is as new, but for its options.
    pub fn disconnect(&self) {
        let none = [0u8; 16];
        // SAFETY: 16 zero bytes are an address of family AF_UNSPEC.
        check(unsafe { libc::connect(self.0.as_raw_fd(), none.as_ptr().cast(), 16) } as isize).expect("disconnect");
    }

    pub fn send_fast_open(&self, address: SocketAddr) {
        let address = Address::new(address);
        // SAFETY: one byte of data; pointer and length are of one address.
        let result = unsafe {
            let (fd, data) = (self.0.as_raw_fd(), b"x".as_ptr().cast());
            libc::sendto(fd, data, 1, libc::MSG_FASTOPEN, address.pointer(), address.1)
        };
        check(result).expect("sendto with MSG_FASTOPEN");
    }

    pub fn accept(&self) -> Sock {
        // SAFETY: the peer's address is not asked for; the descriptor is new.
        let fd = check(unsafe { libc::accept(self.0.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) } as isize).expect("accept");
        // SAFETY: accept made the descriptor, and nobody else has it.
        Sock(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    /// The first four bytes, which stay where they are.
    pub fn peek4(&self) -> [u8; 4] {
        let mut bytes = [0; 4];
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_PEEK | libc::MSG_WAITALL);
        // SAFETY: four bytes are asked for, and there is room for them.
        check(unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), 4, flags) }).expect("recv");
        bytes
    }

    pub fn wait(&self, events: i16, milliseconds: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events, revents: 0 };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&mut poll, 1, milliseconds) == 1 }
    }
}

/// What a SYN or SYN-ACK carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub answer: bool,
    /// The whole option 254, or nothing.
    pub option: Vec<u8>,
}

/// A tap on all interfaces of the network namespace it was made in.
pub struct Tap(Sock);

impl Tap {
    pub fn new() -> Tap {
        let every = (libc::ETH_P_ALL as u16).to_be() as i32;
        // SAFETY: no pointers; the descriptor is new.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, every) };
        check(fd as isize).expect("packet socket");
        // SAFETY: `check` has seen that it is a descriptor; it was made above, and nobody else has it.
        Tap(Sock(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// All SYNs and SYN-ACKs since the last call, in order.
    pub fn drain(&self) -> Vec<Seen> {
        let mut seen = Vec::new();
        let mut packet = [0u8; 2048];
        loop {
            // SAFETY: all zeroes is a sockaddr_ll; buffer and address have the lengths given.
            let (length, outgoing) = unsafe {
                let mut from: libc::sockaddr_ll = std::mem::zeroed();
                let mut size = size_of_val(&from) as libc::socklen_t;
                let (buffer, from_pointer) = (packet.as_mut_ptr().cast(), (&raw mut from).cast());
                let fd = self.0.0.as_raw_fd();
                let length = libc::recvfrom(fd, buffer, packet.len(), 0, from_pointer, &mut size);
                (length, from.sll_pkttype == libc::PACKET_OUTGOING)
            };
            if length < 0 {
                return seen;
            }
            // Loopback shows each packet leaving and arriving.
            if !outgoing {
                seen.extend(handshake(&packet[..length as usize]));
            }
        }
    }
}

fn handshake(packet: &[u8]) -> Option<Seen> {
    let tcp = match packet.first()? >> 4 {
        4 if packet[9] == 6 => &packet[usize::from(packet[0] & 15) * 4..],
        6 if packet[6] == 6 => &packet[40..],
        _ => return None,
    };
    let flags = tcp[13];
    if flags & 0x02 == 0 {
        return None;
    }
    let mut options = &tcp[20..usize::from(tcp[12] >> 4) * 4];
    let mut option = Vec::new();
    while let [kind, rest @ ..] = options {
        options = match (*kind, rest) {
            (0, _) | (_, []) => break,
            (1, _) => rest,
            (254, [length, ..]) => {
                option = options[..usize::from(*length)].to_vec();
                &options[usize::from(*length)..]
            }
            (_, [length, ..]) => &options[usize::from(*length)..],
        };
    }
    Some(Seen { answer: flags & 0x10 != 0, option })
}

pub fn as_nobody<R>(what: impl FnOnce() -> R) -> R {
    seteuid(Uid::from_raw(65534)).expect("become an ordinary user");
    let result = what();
    seteuid(Uid::from_raw(0)).expect("become root again");
    result
}

/// Sockets made from now on belong to this cgroup.
pub fn enter(cgroup: &Path) {
    fs::write(cgroup.join("cgroup.procs"), "0").expect("enter the cgroup");
}

pub fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status().expect("ip");
    assert!(done.success(), "ip {arguments}");
}

/// A network namespace of its own for this process, with loopback up.
pub fn new_namespace() -> File {
    unshare(CloneFlags::CLONE_NEWNET).expect("unshare");
    ip("link set lo up");
    File::open("/proc/self/ns/net").expect("open the namespace")
}

pub fn switch_to(namespace: &File) {
    setns(namespace, CloneFlags::CLONE_NEWNET).expect("setns");
}

pub fn sysctl(name: &str, value: &str) {
    fs::write(Path::new("/proc/sys").join(name), value).expect(name);
}

pub fn v4(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

pub fn v6(port: u16) -> SocketAddr {
    (Ipv6Addr::LOCALHOST, port).into()
}
