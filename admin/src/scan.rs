//! Finds the family pages of running processes and who of them uses which connection. Used by
//! stats, sock, explain, drain, top, linkgroup and bench.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::bail;
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
    pub unreadable: Vec<u32>,
    /// Processes whose pages cannot be understood.
    broken: Vec<(u32, FamilyError)>,
}

/// Identities of pages, and their places in `families`.
type Seen = HashMap<(u64, u64), usize>;

/// Pages that are read of one process. It may have its parent's as well as its own.
const MOST_PAGES: usize = 2;

/// A page and the living processes that have it open.
pub struct FamilyView {
    pub page: Family,
    /// The inode of the page: no other one has it while this machine runs.
    pub id: u64,
    pub holders: Vec<Holder>,
    by_process: HashMap<u32, usize>,
    /// The holders of each socket, and its descriptor there.
    by_inode: HashMap<u64, Vec<(usize, i32)>>,
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
        who.pid.is_none_or(|p| p == self.pid) && who.uid.is_none_or(|u| u == self.uid) && matches_program(who, &self.name)
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
            uid: procfs::user(pid)?,
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
        let mut host = Host::default();
        let mut seen = Seen::new();
        for pid in pids {
            if who.uid.is_some_and(|u| procfs::user(pid) != Some(u)) {
                continue;
            }
            match procfs::descriptors(pid) {
                Ok(fds) => host.add_all(pid, &fds, &mut seen),
                Err(_) if is_ours(pid) => host.unreadable.push(pid),
                Err(_) => {}
            }
        }
        host.families.retain(|f| !f.holders.is_empty());
        host.families.iter_mut().for_each(FamilyView::index);
        host.tell_newer();
        host.tell_broken();
        Ok(host)
    }

    /// The pages of a process.
    fn add_all(&mut self, pid: u32, fds: &[(i32, Kind)], seen: &mut Seen) {
        let is_page = |kind: &Kind| matches!(kind, Kind::Memory(name) if name == MEMFD_NAME);
        let mut own = Vec::with_capacity(MOST_PAGES);
        for (fd, _) in fds.iter().filter(|(_, kind)| is_page(kind)) {
            let Some((file, id)) = open_page(pid, *fd) else { continue };
            if own.contains(&id) {
                continue; // open twice
            }
            if own.len() == MOST_PAGES {
                return self.broken.push((pid, FamilyError::Many));
            }
            own.push(id);
            self.add(pid, &file, id, fds, seen);
        }
    }

    fn add(&mut self, pid: u32, file: &File, id: (u64, u64), fds: &[(i32, Kind)], seen: &mut Seen) {
        let at = match seen.get(&id) {
            Some(at) => *at,
            None => match Family::read(file) {
                Ok(page) => {
                    self.families.push(FamilyView::new(page, id.1));
                    seen.insert(id, self.families.len() - 1);
                    self.families.len() - 1
                }
                Err(error) => return self.broken.push((pid, error)),
            },
        };
        if let Some(family) = self.families.get_mut(at) {
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
        if !self.unreadable.is_empty() {
            text += &format!("; {} processes could not be looked into", self.unreadable.len());
        }
        match nix::unistd::geteuid().is_root() {
            true if !self.unreadable.is_empty() => text += ", which takes CAP_SYS_PTRACE",
            true => {}
            false => text += "; only root sees those of other users",
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

/// Whether a process is one that this user should be able to look into.
pub fn is_ours(pid: u32) -> bool {
    let own = nix::unistd::geteuid();
    procfs::user(pid).is_some_and(|uid| own.is_root() || own.as_raw() == uid)
}

/// A process that the caller named; an error if there is none, or it is not to be seen.
pub fn may_look(pid: u32) -> anyhow::Result<u32> {
    match procfs::descriptors(pid) {
        Ok(_) => Ok(pid),
        Err(e) if e.kind() == ErrorKind::PermissionDenied && nix::unistd::geteuid().is_root() => {
            bail!("process {pid} cannot be looked into; run smcrctl with CAP_SYS_PTRACE")
        }
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            bail!("process {pid} belongs to another user or hides itself; ask root to look")
        }
        Err(_) => bail!("no process {pid}; smcrctl sock lists those with the library"),
    }
}

/// Opens a page and gives its identity; none if it is no plain file. The name of the link is no proof.
fn open_page(pid: u32, fd: i32) -> Option<(File, (u64, u64))> {
    let place = procfs::place(pid, fd)?;
    let meta = place.metadata().ok().filter(|m| m.is_file())?;
    let file = procfs::open_place(&place, OpenOptions::new().read(true))?;
    Some((file, (meta.dev(), meta.ino())))
}

impl FamilyView {
    fn new(page: Family, id: u64) -> FamilyView {
        FamilyView { page, id, holders: Vec::new(), by_process: HashMap::new(), by_inode: HashMap::new() }
    }

    /// Finds the living process of each process record, and who has which socket.
    fn index(&mut self) {
        for process in &self.page.processes {
            // One that had no /proc when it began (chroot) does not know when it started.
            let same = |h: &Holder| (h.start == process.start || process.start == 0) && (h.own_pid == process.pid || h.pid == process.pid);
            if let Some(at) = self.holders.iter().position(same) {
                self.by_process.insert(process.index, at);
            }
        }
        for (at, holder) in self.holders.iter().enumerate() {
            for (fd, inode) in holder.sockets.iter() {
                self.by_inode.entry(*inode).or_default().push((at, *fd));
            }
        }
    }

    /// The living process of a process record.
    pub fn holder(&self, index: u32) -> Option<&Holder> {
        self.by_process.get(&index).and_then(|at| self.holders.get(*at))
    }

    /// Who has a socket, and under which number: the process of this record if it does, else any.
    fn has(&self, inode: u64, process: u32) -> Option<(&Holder, i32)> {
        let all = self.by_inode.get(&inode)?;
        let last = self.by_process.get(&process);
        let (at, fd) = all.iter().find(|(at, _)| Some(at) == last).or(all.first())?;
        Some((self.holders.get(*at)?, *fd))
    }

    /// The connection of a record; none if it is not to be found any more, for the record of a
    /// close that the library did not see stays behind for a while.
    fn connection(&self, socket: &Socket, tables: &mut Tables) -> Option<Connection> {
        let last = self.holder(socket.process);
        let inode = last.and_then(|h| h.sockets.get(&socket.fd).copied());
        let table = tables.of(last.or(self.holders.first())?);
        let (user, fd, inode) = match (last, inode) {
            (Some(user), Some(inode)) => {
                let line = table.and_then(|t| t.by_inode.get(&inode));
                // Another socket under the same number: the one we look for is closed.
                if line.is_some_and(|l| !l.is_of(socket)) {
                    return None;
                }
                (user, socket.fd, inode)
            }
            // Its last user closed it, gave it another number or is gone, but a relative may have it open. With -p
            // only one process was looked at, and what it does not have is not its own.
            _ => {
                let (local, peer) = socket.addresses?;
                let inode = *table?.inodes.get(&(plain(local), plain(peer)))?;
                let has = self.has(inode, socket.process);
                let (user, fd) = has.or(last.map(|user| (user, socket.fd)))?;
                (user, fd, inode)
            }
        };
        let line = table.and_then(|t| t.by_inode.get(&inode));
        let of_kernel = line.map(|l| (l.local, l.peer));
        let addresses = socket.addresses.or(of_kernel);
        Some(Connection {
            socket: Socket { fd, ..socket.clone() },
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
        socket.addresses.is_none_or(|(local, peer)| plain(local) == plain(self.local) && (self.listening || plain(peer) == plain(self.peer)))
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
            let table = TcpTable { inodes: by_inode.values().map(by_pair).collect(), by_inode };
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
