//! Why a connection is on TCP: one number, one name and one sentence for each reason.
//!
//! The library stores the number in the record of a socket, `smcrctl` prints name and sentence.
//! Numbers of SMC-R's own diagnosis codes (Linux `net/smc/smc_clc.h`) keep their values
//! (0x01000000 and up); the library's own begin at 1. A number is never used again for another
//! meaning.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $label:literal, $text:literal, $mend:literal;)*) => {
        /// A numbered reason.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub enum Reason { $($(#[$doc])* $name = $code,)* }

        impl Reason {
            /// Every reason, in the order of the numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// The reason with this number, if there is one.
            pub const fn from_code(code: u32) -> Option<Reason> {
                match code { $($code => Some(Reason::$name),)* _ => None }
            }

            /// A short name as `smcrctl` shows it in a column.
            pub const fn label(self) -> &'static str {
                match self { $(Reason::$name => $label,)* }
            }

            /// One sentence that says what is the case.
            pub const fn text(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }

            /// What a user can change, or that nothing can be changed; empty where nothing is to be said.
            pub const fn mend(self) -> &'static str {
                match self { $(Reason::$name => $mend,)* }
            }
        }
    };
}

reasons! {
    /// Accelerated, or nothing to say.
    None = 0, "-", "the connection is accelerated, or has not asked yet", "";
    /// Too young or too short to be worth a switch.
    NotWorthIt = 1, "short", "the connection has not carried enough traffic to be worth a switch", "SMCR_SWITCH_OPS and SMCR_SWITCH_BYTES lower the threshold";
    /// Switched off by environment, user or host.
    Disabled = 2, "disabled", "acceleration is switched off", "smcrctl enable, or unset SMCR_ENABLE=0";
    /// A rule leaves this port out.
    PortExcluded = 3, "port", "the port is not in the port range", "smcrctl port-range add PORT";
    /// A rule leaves this address out.
    AddressExcluded = 4, "address", "the address is not in ip_addr_list", "smcrctl set ip_addr_list=...";
    /// Another host, and no RDMA path to it.
    PeerRemote = 5, "remote", "the peer is on another host and no RDMA path to it is known", "for RDMA: smcrctl enable on both hosts, an RDMA device (smcrctl device), mode auto or rdma";
    /// The peer's end does not say that it has the library.
    PeerPlain = 6, "peer-plain", "the peer does not have the library loaded, or has not announced it", "start the peer with smcrctl run";
    /// sock_diag is not there or refused.
    NoDiag = 7, "no-diag", "the kernel's sock_diag could not be asked for the peer's socket", "modprobe tcp_diag, or allow AF_NETLINK";
    /// The peer's socket belongs to another uid than its channel.
    UidMismatch = 8, "uid", "the uid of the peer's socket is not the uid of the process that answers for it", "nothing here: a proxy answers, or the descriptor was passed on; connect to the program itself";
    /// The peer did not answer in time.
    PeerSilent = 9, "peer-silent", "the peer announced the library but did not answer", "see whether the peer is stopped or busy; new connections ask it again";
    /// The nonce on the peer's socket did not appear or differed.
    ProofFailed = 10, "proof", "the process at the other end could not be proved to hold this connection", "nothing here: a proxy answers, or the descriptor was passed on; connect to the program itself";
    /// The nonce in the stream was wrong.
    StreamProofFailed = 11, "stream-proof", "the requester could not be proved to be the other end of this connection", "nothing here: a proxy answers, or the descriptor was passed on; connect to the program itself";
    /// No protocol version in common.
    Version = 12, "version", "the two libraries have no protocol version in common", "upgrade the older side";
    /// Memory limit reached.
    MaxMemory = 13, "max-memory", "max_memory is used up", "smcrctl set max_memory=...";
    /// The system refused memory, descriptors or mappings.
    NoResources = 14, "resources", "memory, a descriptor or a mapping could not be had", "raise ulimit -n or the memory limit";
    /// Bytes were read or written behind the library's back.
    CountMismatch = 15, "raw-io", "bytes went through the socket that the library did not see", "let the program use the socket by libc calls only, with the library in all its processes";
    /// A reader has been inside the kernel for the whole time.
    BusyReader = 16, "reader", "a thread is blocked in a read that consumes", "nothing: tried again when the read returns";
    /// fdopen, dprintf.
    Stdio = 17, "stdio", "the socket is used through a FILE", "nothing, unless the program can do without fdopen, dprintf and descriptors 0 to 2 for it";
    /// MSG_OOB, SO_OOBINLINE.
    Urgent = 18, "urgent", "urgent data is used", "nothing, unless the program can do without MSG_OOB";
    /// A TCP upper layer protocol (kTLS).
    Ulp = 19, "ulp", "a TCP upper layer protocol (kTLS) is set", "nothing, or switch kTLS off in the program";
    /// MSG_ZEROCOPY, SO_ZEROCOPY.
    ZeroCopy = 20, "zerocopy", "zero-copy completions are used", "nothing, or switch MSG_ZEROCOPY off in the program";
    /// SO_PEEK_OFF.
    PeekOff = 21, "peek-off", "SO_PEEK_OFF is used", "nothing, unless the program can do without SO_PEEK_OFF";
    /// O_ASYNC, SIGIO.
    Async = 22, "o-async", "O_ASYNC (SIGIO) is used", "nothing, unless the program can do without SIGIO";
    /// io_uring.
    IoUring = 23, "io-uring", "io_uring is used by this process", "let the program use epoll instead of io_uring, if it has the choice";
    /// The descriptor was passed to another process.
    Passed = 24, "passed", "the descriptor was passed to another process", "nothing: the bytes belong to the process that got it as well";
    /// Survived exec.
    Exec = 25, "exec", "the descriptor was handed to a program by exec or posix_spawn", "start the other program with the library too; the next connections are its own";
    /// Several processes hold it and it had not switched before.
    SharedByFork = 26, "fork-shared", "several processes hold the connection", "nothing: it moves when all but one process have closed it or ended";
    /// smcrctl drain.
    Drained = 27, "drained", "moved back to TCP by smcrctl drain", "nothing: new connections are accelerated; smcrctl disable keeps them on TCP too";
    /// The switch back under a full ring with a waiter that the library cannot see.
    UnseenWriter = 28, "unseen-writer", "a waiter for writability that the library cannot see", "nothing: the program waits by raw system calls for room to write";
    /// The peer has ended; or only its sending has, and it reads nothing.
    HalfClosed = 29, "half-closed", "the peer has ended, or has shut down its sending side and reads nothing", "nothing: one that reads on is served by memory";
    /// The peer broke the rules of the shared memory.
    PeerHostile = 30, "peer-broke-rules", "the peer wrote values that cannot be right; the connection was reset", "look at the peer: it is broken or hostile";
    /// The peer pinned it.
    PeerPinned = 31, "peer-pinned", "the peer keeps the connection on TCP", "smcrctl explain the connection at the other end";
    /// seccomp was installed by the process itself.
    Seccomp = 32, "seccomp", "the process restricted its own system calls", "let the program connect before it restricts itself";
    /// The socket table of the process family is full.
    TableFull = 33, "table-full", "the socket table of the process family is full", "fewer connections in one family of processes (65,536)";
    /// fd beyond the table.
    FdTooHigh = 34, "fd-too-high", "the descriptor number is beyond the table (1,048,576)", "a lower ulimit -n, if the program takes high numbers by itself";
    /// TCP Fast Open.
    FastOpen = 35, "fast-open", "TCP Fast Open is used", "nothing, or switch TCP Fast Open off in the program";
    /// SO_MAX_PACING_RATE is used by the program.
    Pacing = 36, "pacing", "the program sets SO_MAX_PACING_RATE, which discovery uses", "nothing, or switch pacing off in the program";
    /// Refused by peer_uid.
    PeerUidRefused = 37, "peer-uid", "the uid of the peer is not allowed by peer_uid", "smcrctl set peer_uid=...";
    /// Repair mode, MD5, AO, socket filters.
    TcpSpecial = 38, "tcp-special", "an option is set that ties the data to the kernel's connection", "nothing, unless the program can do without the option (TCP_REPAIR, TCP_MD5SIG, SO_ATTACH_FILTER and others)";
    /// A rule says use=tcp.
    Rule = 39, "rule", "a rule keeps the connection on TCP", "smcrctl rule list";
    /// The mode leaves shared memory out.
    Mode = 40, "mode", "mode=rdma leaves shared memory out, and no RDMA path is known", "smcrctl set mode=auto";
    /// A full ring that nobody read.
    NotRead = 41, "not-read", "the peer left the ring full and unread; memory is tried again", "nothing: a reader that keeps up gets it back to memory";
    /// A dead RDMA link.
    LinkLost = 42, "link-lost", "the RDMA link broke; the connection went on over TCP", "look at the RDMA port and at UDP port 4791 between the hosts; new connections try RDMA again";
    /// A waiter that the library cannot see, over RDMA.
    UnseenWaiter = 43, "unseen-waiter", "a waiter that the library cannot see waits for a connection over RDMA", "nothing: RDMA is for programs whose waits the library sees";
    /// Left to relatives with other privileges.
    Privileges = 44, "privileges", "a process that held the connection with others has changed its privileges", "nothing: change them before connections are made, or close those of others first";
    /// aio_read and its like, io_submit.
    Asynchronous = 45, "aio", "asynchronous I/O (aio_read, io_submit) is used on the connection", "nothing, or let the program read and write by itself";
    /// A kernel's client in the queue of a server that accepts too slowly.
    NotAccepted = 46, "not-accepted", "the peer waited too long for accept(), and SMC was declined before its connect() failed", "let the program accept sooner; its next connections are asked again";
    /// SMC diagnosis: out of memory.
    SmcMemory = 0x0101_0000, "SMC 01010000", "an end of the connection had no memory for SMC", "raise max_memory, or the locked-memory limit (ulimit -l)";
    /// SMC diagnosis: no Confirm Link.
    SmcTimeoutConfirmLink = 0x0201_0000, "SMC 02010000", "the new RDMA link carried no answer in time (Confirm Link)", "check that UDP port 4791 passes between the RoCE addresses, and their MTU";
    /// SMC diagnosis: no Add Link.
    SmcTimeoutAddLink = 0x0202_0000, "SMC 02020000", "a second RDMA link carried no answer in time (Add Link)", "nothing: one link is enough; check UDP port 4791 between the other RoCE addresses";
    /// SMC diagnosis: configuration.
    SmcConfig = 0x0300_0000, "SMC 03000000", "SMC is configured wrongly at one end", "smcrctl check at both ends";
    /// SMC diagnosis: no SMC option.
    SmcPeerNoSmc = 0x0301_0000, "SMC 03010000", "the peer did not offer SMC in the TCP handshake", "smcrctl enable on both hosts";
    /// SMC diagnosis: IPsec.
    SmcIpsec = 0x0302_0000, "SMC 03020000", "IPsec is in use on the connection", "leave the connection out of the IPsec policy, if it may be";
    /// SMC diagnosis: no device.
    SmcNoDevice = 0x0303_0000, "SMC 03030000", "no SMC device was found", "an RDMA device: smcrctl device shows what there is";
    /// SMC diagnosis: no SMC-D.
    SmcNoSmcd = 0x0303_0001, "SMC 03030001", "no SMC-D device was found", "nothing: SMC-D is of mainframes, libsmcr offers SMC-R";
    /// SMC diagnosis: no RDMA.
    SmcNoRdma = 0x0303_0002, "SMC 03030002", "no usable RDMA device was found", "an RDMA (RoCE v2) device with an IPv4 address; smcrctl device shows what there is";
    /// SMC diagnosis: no ISMv2.
    SmcNoIsmV2 = 0x0303_0003, "SMC 03030003", "ISMv2 (SMC-D version 2) is not supported", "nothing: SMC-D is of mainframes, libsmcr offers SMC-R";
    /// SMC diagnosis: no v2.
    SmcNoV2Ext = 0x0303_0004, "SMC 03030004", "the Proposal has no SMCv2 extension: an end speaks version 1 alone", "configure a user EID at both ends";
    /// SMC diagnosis: no SMC-Dv2.
    SmcNoDv2Ext = 0x0303_0005, "SMC 03030005", "the Proposal has no SMC-Dv2 extension", "nothing: SMC-D is of mainframes, libsmcr offers SMC-R";
    /// SMC diagnosis: no system EID.
    SmcNoSeid = 0x0303_0006, "SMC 03030006", "no system EID is known (SMC-D)", "nothing: SMC-D is of mainframes, libsmcr offers SMC-R";
    /// SMC diagnosis: no SMC-Dv2 device.
    SmcNoSmcdV2 = 0x0303_0007, "SMC 03030007", "no SMC-Dv2 device was found", "nothing: SMC-D is of mainframes, libsmcr offers SMC-R";
    /// SMC diagnosis: no common EID.
    SmcNoUeid = 0x0303_0008, "SMC 03030008", "the ends have no user EID in common", "smcrctl ueid add EID on both hosts (a kernel: smcr ueid add EID)";
    /// SMC diagnosis: release.
    SmcRelease = 0x0303_0009, "SMC 03030009", "the ends have no release of SMCv2 in common", "upgrade the older end";
    /// SMC diagnosis: max connections.
    SmcMaxConns = 0x0303_000a, "SMC 0303000a", "the ends do not agree on the connections of a link group", "on a kernel peer: sysctl net.smc.smcr_max_conns_per_lgr of at least 16";
    /// SMC diagnosis: max links.
    SmcMaxLinks = 0x0303_000b, "SMC 0303000b", "the ends do not agree on the links of a link group", "on a kernel peer: sysctl net.smc.smcr_max_links_per_lgr of 1 or 2";
    /// SMC diagnosis: mode.
    SmcMode = 0x0304_0000, "SMC 03040000", "one end speaks SMC-R and the other SMC-D, or a version that was not offered", "let the peer offer SMC-R too";
    /// SMC diagnosis: eyecatchers.
    SmcEyecatcher = 0x0305_0000, "SMC 03050000", "the peer wants eyecatchers in its RMB elements", "nothing here: no known peer asks for them; look at the peer";
    /// SMC diagnosis: option.
    SmcOption = 0x0306_0000, "SMC 03060000", "a socket option that SMC does not support (TCP Fast Open)", "switch TCP Fast Open off in the program";
    /// SMC diagnosis: subnet.
    SmcPrefix = 0x0307_0000, "SMC 03070000", "the ends are in different IP subnets, which SMC version 1 cannot cross", "configure a user EID at both ends (version 2)";
    /// SMC diagnosis: VLAN.
    SmcVlan = 0x0308_0000, "SMC 03080000", "the VLAN of the connection could not be found out", "give the RoCE device an address in the VLAN of the connection";
    /// SMC diagnosis: ISM VLAN.
    SmcIsmVlan = 0x0309_0000, "SMC 03090000", "the VLAN could not be used on the ISM device", "nothing: SMC-D is of mainframes, libsmcr offers SMC-R";
    /// SMC diagnosis: no active link.
    SmcNoActiveLink = 0x030a_0000, "SMC 030a0000", "the link group has no active link", "nothing: the next connection makes a new link group; check the RDMA network if it comes again";
    /// SMC diagnosis: unknown link.
    SmcNoServerLink = 0x030b_0000, "SMC 030b0000", "the server named a link that the client does not have", "nothing: the next connection begins anew; look at the peer if it comes again";
    /// SMC diagnosis: version.
    SmcVersion = 0x030c_0000, "SMC 030c0000", "the ends speak different versions in one handshake", "upgrade the older end";
    /// SMC diagnosis: DMB limit.
    SmcDmbLimit = 0x030d_0000, "SMC 030d0000", "the SMC-D device has no more buffers", "nothing here: SMC-D at the peer";
    /// SMC diagnosis: no route.
    SmcNoRoute = 0x030e_0000, "SMC 030e0000", "there is no route to the peer's RoCE address", "ip route get the RoCE address of the peer";
    /// SMC diagnosis: gateway.
    SmcIndirect = 0x030f_0000, "SMC 030f0000", "the ends disagree on whether a gateway lies between their RoCE addresses", "check the routes between the RoCE addresses at both ends";
    /// SMC diagnosis: out of sync.
    SmcOutOfSync = 0x0400_0000, "SMC 04000000", "the ends disagree on whether this is their first contact; the next connection begins anew", "nothing: the next connection begins anew";
    /// SMC diagnosis: peer declined.
    SmcDeclined = 0x0500_0000, "SMC 05000000", "the peer declined; its own reason is the peer diagnosis", "what the peer diagnosis says: smcrctl sock has it behind the reason, smcrctl explain PID/FD in words";
    /// SMC diagnosis: internal.
    SmcInternal = 0x0999_0000, "SMC 09990000", "an internal error of one end", "look at the log (SMCR_LOG=info; dmesg at a kernel peer), and report it";
    /// SMC diagnosis: RMB refused.
    SmcRtoken = 0x0999_0001, "SMC 09990001", "the peer's buffer cannot be used: too many of them, or larger than 512 KiB", "a kernel peer: sysctl net.smc.rmem of at most 524288";
    /// SMC diagnosis: link not ready.
    SmcLinkReady = 0x0999_0002, "SMC 09990002", "the queue pair could not be made ready for the peer", "smcrctl device; check MTU and addresses";
    /// SMC diagnosis: register.
    SmcRegister = 0x0999_0003, "SMC 09990003", "memory could not be registered with the RDMA device", "raise the locked-memory limit (ulimit -l)";
}

impl Reason {
    /// The number as stored and shown.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// True if `strict` makes an error of it: what should have worked did not. What the program,
    /// the peer's side or somebody's settings have chosen is none.
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Reason::NoDiag
                | Reason::UidMismatch
                | Reason::PeerSilent
                | Reason::ProofFailed
                | Reason::StreamProofFailed
                | Reason::Version
                | Reason::MaxMemory
                | Reason::NoResources
                | Reason::CountMismatch
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_says_what_to_change() {
        for reason in &Reason::ALL[1..] {
            assert!(!reason.text().is_empty() && !reason.mend().is_empty(), "{reason:?}");
        }
    }

    #[test]
    fn numbers_are_unique_and_round_trip() {
        for (i, a) in Reason::ALL.iter().enumerate() {
            assert_eq!(Reason::from_code(a.code()), Some(*a));
            for b in &Reason::ALL[i + 1..] {
                assert!(a.code() < b.code());
                assert_ne!(a.label(), b.label());
            }
        }
    }
}
