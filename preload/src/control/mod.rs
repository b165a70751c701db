//! What users and root allow: the control pages (`proto::control`), followed while the program runs.
//!
//! Nothing is opened before the first eligible socket. From then on [`poll`] is a comparison of each
//! mapped page's generation with the one read last, and [`look`] also looks about once a second for
//! pages that are missing or were replaced. What changed becomes one policy of environment, user's and
//! host's page; connections ask it before they begin ([`decide`], [`decide_peer`]), the hot values go
//! to `config`, and requests to drain go to whoever called [`on_drain`].
//!
//! One thread at a time works on it, in memory of ours, and nobody waits for it: a policy is written
//! into the one of two places that no reader is in.

mod page;
mod place;
pub mod wake;

pub use place::{remember_environment, remember_paths};

use crate::family::process;
use crate::family::sock::{Sock, role};
use crate::sys::{caught, clock, net, proc};
use crate::{config, log};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use page::{Mapped, Who};
use smcr_proto::control::{self as proto, Flow, LEN, Mode, Page, Policy, Role, Target};
use smcr_proto::reason::Reason;
use smcr_proto::smc;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// 1 once the program restricts its own system calls.
static RESTRICTED: AtomicBool = AtomicBool::new(false);

/// 1 once the library has withdrawn from the process.
static WITHDRAWN: AtomicBool = AtomicBool::new(false);

/// Time between two looks for pages.
const LOOK_US: u64 = 1_000_000;

/// What [`poll`] compares, in one line of the cache.
#[repr(align(64))]
struct Pages([Mapped; 2]);

/// The user's page, then the host's: the stronger first.
static PAGES: Pages = Pages([Mapped::new(Who::User), Mapped::new(Who::Host)]);
/// Tick of the next look for pages; 0: at once.
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);
/// 1 while a thread works on what follows.
static WORKING: AtomicU32 = AtomicU32::new(0);
static WORK: Own<Inner> = Own(UnsafeCell::new(MaybeUninit::uninit()));
/// Whether WORK and PLACES were written for the first time.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// Two places for policies.
static PLACES: [Own<Policy>; 2] = [const { Own(UnsafeCell::new(MaybeUninit::uninit())) }; 2];
/// The policy in force; null: the default.
static CURRENT: AtomicPtr<Policy> = AtomicPtr::new(std::ptr::null_mut());
/// Threads that look at the policy in force.
static READERS: AtomicU32 = AtomicU32::new(0);
/// Who moves connections; a function, or null.
static DRAIN: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Memory for the thread that has set WORKING.
struct Own<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: only the thread that has set WORKING touches it. A place of a policy is read by others while
// CURRENT names it and READERS is up, and written when neither is so (`publish`).
unsafe impl<T> Sync for Own<T> {}

struct Inner {
    image: [u8; LEN],
    /// As `PAGES`.
    pages: [Page; 2],
    /// Whether they say more than the policy in force.
    due: bool,
}

/// Requests that came in one change: of both pages, and one for all that stands for lost ones.
type Requests = [Option<Target>; 2 * (proto::drain::RING + 1)];

/// Who is told of requests to move connections to TCP. Called by the constructor.
pub fn on_drain(f: fn(Target)) {
    DRAIN.store(f as *mut (), Release);
}

/// Before a wait, and at each call of the engine that is not the shortest: follows what a page says now. Two loads for each page if nothing has changed.
#[inline]
pub fn poll() {
    if PAGES.0.iter().any(Mapped::has_changed) {
        work();
    }
}

/// At a new connection and before a sleep in the kernel: as [`poll`], and looks for pages again when
/// a second has passed.
#[inline]
pub fn look() {
    if PAGES.0.iter().any(Mapped::has_changed) || clock::ticks() >= NEXT_LOOK.load(Relaxed) {
        work();
    }
}

/// The program restricts its own system calls (seccomp): from now on no page is looked for, and no
/// connection begins. Pages that are mapped are followed as before. A forked child inherits both.
pub fn restrict() {
    RESTRICTED.store(true, Relaxed);
    crate::sys::few::ask_no_more();
    crate::sys::porter::stop();
}

/// Whether it does: nothing is set up any more that takes a system call of its own.
#[inline]
pub fn is_restricted() -> bool {
    RESTRICTED.load(Relaxed)
}

/// The program's filter permits it no calls of ours (`table::confine`): none is made from now on.
pub fn withdraw() {
    WITHDRAWN.store(true, Relaxed);
    crate::sys::probe::ask_no_more();
    config::withdraw();
}

/// Whether the library has withdrawn: every hook passes its call on.
#[inline]
pub fn is_withdrawn() -> bool {
    WITHDRAWN.load(Relaxed)
}

/// Whether this connection may leave TCP. Its names must be known.
pub fn decide(s: &Sock) -> Result<(), Reason> {
    look();
    if RESTRICTED.load(Relaxed) {
        return Err(Reason::Seccomp);
    }
    with_policy(|policy| {
        let Some(policy) = policy else { return Ok(()) };
        let is_client = s.role.load(Relaxed) == role::CLIENT;
        let role = if is_client { Role::Client } else { Role::Server };
        let port = s.names[if is_client { 2 } else { 1 }].load(Relaxed);
        decide_flow(policy, proto::decide, role, address(s, &s.local), address(s, &s.remote), port)?;
        if policy.mode == Mode::Rdma { Err(Reason::Mode) } else { Ok(()) }
    })
}

/// Whether a connection to `peer` may go through RDMA. Its own address is looked up only where settings
/// ask for it.
pub fn decide_connect(sock: i32, peer: &net::Addr) -> Result<(), Reason> {
    about_rdma(|policy| {
        let asks = !policy.addrs.is_empty() || policy.rules.iter().any(|r| r.addr.is_some());
        let bound = net::local_addr(sock).ok().filter(|a| a.ip != [0; 16]);
        let local = if asks { bound.or_else(|| net::source_for(peer)) } else { bound };
        let (local, peer_ip) = (local.unwrap_or_default().folded().ip(), peer.ip());
        decide_flow(policy, proto::decide, Role::Client, local, peer_ip, peer.port)?;
        has_room()
    })
}

/// Whether links may use more memory. In shared memory each connection asks for itself.
fn has_room() -> Result<(), Reason> {
    if process::memory() < config::max_memory() { Ok(()) } else { Err(Reason::MaxMemory) }
}

/// Whether connections of a listener may go through RDMA: no only if none of them may.
pub fn decide_listener(local: &net::Addr) -> Result<(), Reason> {
    about_rdma(|policy| {
        let nobody = Ipv4Addr::UNSPECIFIED.into();
        decide_flow(policy, proto::decide_listener, Role::Server, local.ip(), nobody, local.port)
    })
}

fn about_rdma(f: impl FnOnce(&Policy) -> Result<(), Reason>) -> Result<(), Reason> {
    look();
    if RESTRICTED.load(Relaxed) {
        return Err(Reason::Seccomp);
    }
    with_policy(|policy| match policy {
        None => has_room(),
        Some(policy) if policy.mode == Mode::Shm => Err(Reason::PeerRemote),
        Some(policy) => f(policy),
    })
}

/// Whether an accepted or connected connection may go through RDMA. Its names must be known.
pub fn decide_link(s: &Sock) -> Result<(), Reason> {
    about_rdma(|policy| {
        let is_client = s.role.load(Relaxed) == role::CLIENT;
        let role = if is_client { Role::Client } else { Role::Server };
        let port = s.names[if is_client { 2 } else { 1 }].load(Relaxed);
        decide_flow(policy, proto::decide, role, address(s, &s.local), address(s, &s.remote), port)?;
        has_room()
    })
}

/// The user EIDs of this host, and one that every libsmcr has.
pub fn user_eids() -> smc::list::List<smc::id::Eid, { smc::clc::proposal::MAX_ENTRIES }> {
    let mut all = smc::list::List::new();
    with_policy(|policy| {
        for eid in policy.iter().flat_map(|p| p.ueids.iter()) {
            all.push(smc::id::Eid(*eid.bytes()));
        }
    });
    if let Some(own) = smc::id::Eid::new("LIBSMCR") {
        all.push(own);
    }
    all
}

type Decide = fn(&Policy, &Flow<'_>) -> Result<(), Reason>;

fn decide_flow(policy: &Policy, decide: Decide, role: Role, local: IpAddr, peer: IpAddr, port: u16) -> Result<(), Reason> {
    let mut program = [0; 256];
    // Rules alone ask for the program.
    let len = if policy.rules.is_empty() { 0 } else { proc::program(&mut program) };
    decide(policy, &Flow { program: &program[..len], role, uid: proc::euid(), local, peer, port })
}

/// Whether a process of this user may be at the other end.
pub fn decide_peer(uid: u32) -> Result<(), Reason> {
    with_policy(|policy| policy.map_or(Ok(()), |p| proto::decide_peer(p, proc::euid(), uid)))
}

/// Whether users that can't be told apart may be at the other end of a shared memory.
pub fn takes_anyone() -> bool {
    with_policy(|policy| policy.is_some_and(|p| p.peer_uid == proto::PeerUid::Anyone))
}

/// A forked child has one thread, which is in none of this.
pub fn forget_in_child() {
    READERS.store(0, Relaxed);
    WORKING.store(0, Relaxed);
    wake::forget_in_child();
}

fn address(s: &Sock, words: &[AtomicU64; 2]) -> IpAddr {
    let (low, high) = (words[0].load(Relaxed), words[1].load(Relaxed));
    if i32::from(s.names[0].load(Acquire)) == libc::AF_INET {
        return Ipv4Addr::from((low as u32).to_ne_bytes()).into();
    }
    let mut ip = [0; 16];
    ip[..8].copy_from_slice(&low.to_ne_bytes());
    ip[8..].copy_from_slice(&high.to_ne_bytes());
    Ipv6Addr::from(ip).into()
}

/// Runs `f` with the policy in force; None stands for the default.
fn with_policy<T>(f: impl FnOnce(Option<&Policy>) -> T) -> T {
    // SeqCst here and in `publish`: either it sees us, or we see the place that it has changed to.
    READERS.fetch_add(1, SeqCst);
    let p = CURRENT.load(SeqCst);
    // SAFETY: non-null, it is one of PLACES, written whole before it was named, and not written again
    // while READERS is up.
    let result = f(unsafe { p.as_ref() });
    READERS.fetch_sub(1, SeqCst);
    result
}

#[cold]
fn work() {
    if WORKING.swap(1, Acquire) != 0 {
        return; // another thread is at it
    }
    let mut requests: Requests = [None; _];
    wake::take();
    caught(|| {
        // SAFETY: WORKING is ours.
        let inner = unsafe { inner() };
        one_pass(inner, &mut requests);
    });
    WORKING.store(0, Release);
    let drain = DRAIN.load(Acquire);
    if drain.is_null() {
        return;
    }
    // SAFETY: `on_drain` stored a function of this type.
    let drain = unsafe { std::mem::transmute::<*mut (), fn(Target)>(drain) };
    for target in requests.into_iter().flatten() {
        caught(|| drain(target));
    }
}

/// # Safety
/// The caller has set WORKING.
unsafe fn inner() -> &'static mut Inner {
    let p = WORK.0.get().cast::<Inner>();
    // SAFETY: nobody else has a reference, and all is written before the first one is made. In place:
    // the stack may be small.
    unsafe {
        if !BEGUN.load(Relaxed) {
            (&raw mut (*p).image).write([0; LEN]);
            (&raw mut (*p).pages[0]).write(Page::default());
            (&raw mut (*p).pages[1]).write(Page::default());
            (&raw mut (*p).due).write(place::environment().is_some());
            BEGUN.store(true, Relaxed);
        }
        &mut *p
    }
}

fn one_pass(inner: &mut Inner, requests: &mut Requests) {
    let now = clock::ticks();
    let mut is_time = now >= NEXT_LOOK.load(Relaxed);
    if is_time {
        is_time = !RESTRICTED.load(Relaxed);
        NEXT_LOOK.store(now + clock::ticks_of_us(LOOK_US), Relaxed);
    }
    let mut free = requests.iter_mut();
    for (mapped, page) in PAGES.0.iter().zip(&mut inner.pages) {
        if is_time && mapped.find() {
            *page = Page::default();
            inner.due = true;
        }
        if !mapped.has_changed() {
            continue;
        }
        match mapped.read(&mut inner.image, page) {
            page::Read::Later => continue,
            page::Read::Refused => *page = Page::default(),
            page::Read::Done => {
                for (target, to) in mapped.requests(&page.drains).zip(&mut free) {
                    *to = Some(target);
                }
            }
        }
        inner.due = true;
    }
    if inner.due && !publish(inner) {
        NEXT_LOOK.store(0, Relaxed); // a reader was in the way: next time
    }
}

/// Makes one policy of all layers and puts it in force; false if a reader is in its place.
fn publish(inner: &mut Inner) -> bool {
    let free = PLACES.iter().map(|p| p.0.get().cast::<Policy>()).find(|p| *p != CURRENT.load(SeqCst));
    let Some(free) = free else { return false };
    // A reader from before the last change may be in it. Who comes after this load sees the present
    // place in CURRENT.
    if READERS.load(SeqCst) != 0 {
        return false;
    }
    // SAFETY: a place of PLACES that nobody is in, by the above.
    let policy = unsafe {
        free.write(Policy::default());
        &mut *free
    };
    let [user, host] = &inner.pages;
    match place::environment() {
        Some(first) => proto::resolve_into(&[first, &user.layer, &host.layer], policy),
        None => proto::resolve_into(&[&user.layer, &host.layer], policy),
    }
    config::apply(policy);
    process::show_enabled(policy.enabled && policy.mode != Mode::Off);
    log::info!(target: "smcr::control", enabled = policy.enabled, mode = policy.mode as u32,
        strict = policy.strict, ports = policy.ports.len(), rules = policy.rules.len(), "settings");
    CURRENT.store(free, SeqCst);
    inner.due = false;
    true
}
