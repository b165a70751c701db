//! Finds the family pages of running processes and who of them uses which connection. Used by
//! stats, sock, explain, drain, top, linkgroup and bench.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::bail;
use nix::fcntl::OFlag;
use smcr_proto::control::rule::glob;
use smcr_proto::page::{MEMFD_NAME, State};

use crate::cli::Who;
use crate::family::{Family, FamilyError, Socket};
use crate::out;
use crate::procfs::{self, Kind, TcpLine};

/// Everything that could be read.
#[derive(Default)]
pub struct Host {
    pub families: Vec<FamilyView>,
    /// Processes of ours that we may not look into.
    pub unreadable: usize,
    /// Processes whose pages cannot be understood.
    broken: Vec<(u32, FamilyError)>,
}

/// A page and the living processes that have it open.
pub struct FamilyView {
    pub page: Family,
    pub holders: Vec<Holder>,
    by_process: HashMap<u32, usize>,
}

/// A living process.
#[derive(Clone)]
pub struct Holder {
    /// Its number as we see it.
    pub pid: u32,
    /// Its number as it sees itself.
    pub own_pid: u32,
    pub start: u64,
    pub uid: u32,
    pub name: String,
    /// Its network namespace, and the inodes of its sockets by descriptor, as they were when it was
    /// looked at.
    network: Option<PathBuf>,
    sockets: Rc<HashMap<i32, u64>>,
}

impl Holder {
    /// True if it is what the options ask for.
    pub fn matches(&self, who: &Who) -> bool {
        who.pid.is_none_or(|p| p == self.pid)
            && who.uid.is_none_or(|u| u == self.uid)
            && matches_program(who, &self.name)
    }

    /// Looks at a process that has this page open; none if it is gone.
    fn look(pid: u32, fds: &[(i32, Kind)], page: &Family) -> Option<Holder> {
        let (name, start) = procfs::name_and_start(pid)?;
        // Only one in a container has another number, and a page that does not know ours.
        let is_known = page.processes.iter().any(|p| p.pid == pid && p.start == start);
        Some(Holder {
            pid,
            own_pid: if is_known { pid } else { procfs::own_pid(pid)? },
            start,
            uid: procfs::owner(pid)?,
            name,
            network: procfs::network(pid),
            sockets: Rc::new(procfs::sockets(fds)),
        })
    }
}

#[cfg(test)]
impl Holder {
    /// A process that nobody looked at, for the tests of what is printed of it.
    pub fn named(pid: u32, name: &str) -> Holder {
        Holder { pid, own_pid: pid, start: 1, uid: 0, name: name.into(), network: None, sockets: Rc::default() }
    }
}

impl Host {
    /// Looks at every process, or at one.
    pub fn scan(who: &Who) -> anyhow::Result<Host> {
        let pids = match who.pid {
            Some(pid) => vec![may_look(pid)?],
            None => procfs::pids()?,
        };
        let own = nix::unistd::geteuid();
        let mut host = Host::default();
        let mut seen: HashMap<(u64, u64), usize> = HashMap::new();
        for pid in pids {
            if who.uid.is_some_and(|u| procfs::owner(pid) != Some(u)) {
                continue;
            }
            let Ok(fds) = procfs::descriptors(pid) else {
                let uid = procfs::owner(pid);
                if uid.is_some_and(|uid| own.is_root() || own.as_raw() == uid) {
                    host.unreadable += 1;
                }
                continue;
            };
            let is_page = |kind: &Kind| matches!(kind, Kind::Memory(name) if name == MEMFD_NAME);
            for (fd, _) in fds.iter().filter(|(_, kind)| is_page(kind)) {
                host.add(pid, *fd, &fds, &mut seen);
            }
        }
        host.families.retain(|f| !f.holders.is_empty());
        host.families.iter_mut().for_each(FamilyView::index);
        host.tell_newer();
        host.tell_broken();
        Ok(host)
    }

    fn add(
        &mut self,
        pid: u32,
        fd: i32,
        fds: &[(i32, Kind)],
        seen: &mut HashMap<(u64, u64), usize>,
    ) {
        let Some((file, id)) = open_page(pid, fd) else {
            return;
        };
        let at = match seen.get(&id) {
            Some(at) => *at,
            None => {
                let page = match Family::read(&file) {
                    Ok(page) => page,
                    Err(error) => {
                        self.broken.push((pid, error));
                        return;
                    }
                };
                self.families.push(FamilyView {
                    page,
                    holders: Vec::new(),
                    by_process: HashMap::new(),
                });
                seen.insert(id, self.families.len() - 1);
                self.families.len() - 1
            }
        };
        let Some(family) = self.families.get_mut(at) else {
            return;
        };
        // A process may have the page open twice.
        if family.holders.last().is_none_or(|h| h.pid != pid) {
            family.holders.extend(Holder::look(pid, fds, &family.page));
        }
    }

    /// Says once what cannot be shown.
    fn tell_broken(&self) {
        if let Some((pid, error)) = self.broken.first() {
            let more = match self.broken.len() {
                1 => String::new(),
                n => format!(", and {} others", n - 1),
            };
            out::note(&format!("note: process {pid}{more} is left out: {error}; restart it, or upgrade smcrctl"));
        }
    }

    fn tell_newer(&self) {
        if let Some(version) = self.families.iter().filter_map(|f| f.page.newer).max() {
            out::note(&format!(
                "note: a library shows pages of version {version}, newer than this smcrctl; \
                 what it knows is shown"
            ));
        }
    }

    /// Says why something may be missing, when there is nothing to see.
    pub fn explain_empty(&self) -> String {
        let mut text = "no process with the library was found".to_string();
        if self.unreadable > 0 {
            text += &format!("; {} processes could not be looked into", self.unreadable);
        }
        if !nix::unistd::geteuid().is_root() {
            text += "; only root sees those of other users";
        }
        text
    }

    /// Every connection with the process that uses it.
    pub fn connections(&self, who: &Who) -> Vec<Connection> {
        let mut tables = Tables::default();
        let mut found = Vec::new();
        for family in &self.families {
            for socket in &family.page.sockets {
                if let Some(c) = family.connection(socket, &mut tables) {
                    found.push(c);
                }
            }
        }
        found.retain(|c| c.matches(who));
        found
    }
}

/// A process that the caller named; an error if there is none, or it is not to be seen.
pub fn may_look(pid: u32) -> anyhow::Result<u32> {
    match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(_) => Ok(pid),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            bail!("process {pid} belongs to another user or hides itself; ask root to look")
        }
        Err(_) => bail!("no process {pid}; smcrctl sock lists those with the library"),
    }
}

/// Opens a page and gives its identity; none if it is no plain file any more.
fn open_page(pid: u32, fd: i32) -> Option<(File, (u64, u64))> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(path).ok()?;
    let meta = file.metadata().ok()?;
    meta.is_file().then_some((file, (meta.dev(), meta.ino())))
}

impl FamilyView {
    /// Finds the living process of each process record.
    fn index(&mut self) {
        for process in &self.page.processes {
            let same = |h: &Holder| {
                h.start == process.start && (h.own_pid == process.pid || h.pid == process.pid)
            };
            if let Some(at) = self.holders.iter().position(same) {
                self.by_process.insert(process.index, at);
            }
        }
    }

    /// The living process of a process record.
    pub fn holder(&self, index: u32) -> Option<&Holder> {
        self.by_process
            .get(&index)
            .and_then(|at| self.holders.get(*at))
    }

    /// The connection of a record; none if it is not to be found any more, for the record of a
    /// close that the library did not see stays behind for a while.
    fn connection(&self, socket: &Socket, tables: &mut Tables) -> Option<Connection> {
        let last = self.holder(socket.process);
        let inode = last.and_then(|h| h.sockets.get(&socket.fd).copied());
        let table = tables.of(last.or(self.holders.first())?);
        let (user, inode) = match (last, inode) {
            (Some(user), Some(inode)) => {
                let line = table.and_then(|t| t.by_inode.get(&inode));
                // Another socket under the same number: the one we look for is closed.
                if line.is_some_and(|l| !l.is_of(socket)) {
                    return None;
                }
                (user, inode)
            }
            // Its last user closed it or is gone, but a relative may have it open.
            _ => {
                let (local, peer) = socket.addresses?;
                let inode = *table?.inodes.get(&(plain(local), plain(peer)))?;
                let has = |h: &&Holder| h.sockets.get(&socket.fd) == Some(&inode);
                let other = self.holders.iter().take(64).find(has);
                (last.or(other).or(self.holders.first())?, inode)
            }
        };
        let line = table.and_then(|t| t.by_inode.get(&inode));
        let of_kernel = line.map(|l| (l.local, l.peer));
        let addresses = socket.addresses.or(of_kernel);
        Some(Connection {
            socket: socket.clone(),
            user: user.clone(),
            inode,
            local: addresses.map(|(local, _)| local),
            peer: addresses.map(|(_, peer)| peer).filter(|p| p.port() != 0),
        })
    }
}

impl TcpLine {
    /// False if the record tells of another socket than this line.
    fn is_of(&self, socket: &Socket) -> bool {
        socket.addresses.is_none_or(|(local, peer)| {
            plain(local) == plain(self.local) && (self.listening || plain(peer) == plain(self.peer))
        })
    }
}

/// The kernel's TCP sockets, read once for each network namespace and only if needed.
#[derive(Default)]
struct Tables {
    by_network: HashMap<PathBuf, TcpTable>,
}

struct TcpTable {
    by_inode: HashMap<u64, TcpLine>,
    inodes: HashMap<(SocketAddr, SocketAddr), u64>,
}

impl Tables {
    fn of(&mut self, holder: &Holder) -> Option<&TcpTable> {
        let network = holder.network.as_ref()?;
        if !self.by_network.contains_key(network) {
            let by_inode = procfs::tcp_by_inode(holder.pid);
            let by_pair = |l: &TcpLine| ((plain(l.local), plain(l.peer)), l.inode);
            let table = TcpTable {
                inodes: by_inode.values().map(by_pair).collect(),
                by_inode,
            };
            self.by_network.insert(network.clone(), table);
        }
        self.by_network.get(network)
    }
}

/// An address of an IPv4 connection on an IPv6 socket is the same as the plain one.
fn plain(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// A connection (or listening socket) of a living process.
#[derive(Clone)]
pub struct Connection {
    pub socket: Socket,
    pub user: Holder,
    pub inode: u64,
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
}

impl Connection {
    pub fn matches(&self, who: &Who) -> bool {
        self.user.matches(who)
    }

    pub fn is_live(&self) -> bool {
        !self.socket.is(State::Closed) && !self.socket.is(State::Listening)
    }

    pub fn has_port(&self, port: u16) -> bool {
        let ports = [self.local, self.peer];
        ports.iter().flatten().any(|a| a.port() == port)
    }
}

/// True if the name is what `--program` asks for.
pub fn matches_program(who: &Who, name: &str) -> bool {
    let pattern = who.program.as_deref();
    pattern.is_none_or(|p| glob(p.as_bytes(), name.as_bytes()))
}
