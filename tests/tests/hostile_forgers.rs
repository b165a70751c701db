//! Discovery against forgers and confusions: who is accelerated, who stays on TCP and why, and that
//! the bytes are right in any case.

mod hostile_common;

use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use hostile_common::{Talker, attack, connections, counter, everybody, here, hostile, hostile_as, is_root, server};
use smcr_tests::apps::PORT;
use smcr_tests::net::Net;
use smcr_tests::process::{DEADLINE, Load, Program, Running, eventually};
use smcr_tests::share::measure;

const LOCAL: &str = "127.0.0.1";

fn port() -> String {
    PORT.to_string()
}

/// A relay shows the server's announcement on its own socket: the cookie is not the server's.
#[test]
fn a_relay_that_copies_the_announcement() -> Result<()> {
    for who in everybody() {
        let net = Net::new()?;
        let _server = server(&net, Load::Library, "threads", &[])?;
        let relay = hostile_as(&net, who, &["relay", &here(), "7100"]).start()?;
        net.wait_listen(7100)?;
        let mut client = Talker::start(&net, Load::Library, &[LOCAL, "7100"])?;
        // The socket of another user's relay is not the user's who has the name.
        let reason = if who.is_none() { "peer-silent" } else { "uid" };
        client.ensure_on_tcp(reason).with_context(|| format!("{who:?}: {:?}", relay.so_far()))?;
        client.end()?;
    }
    Ok(())
}

/// A server that announces a channel and does not keep to the rules on it.
fn forged(how: &str, reason: &str) -> Result<()> {
    let net = Net::new()?;
    let forger = hostile(&net, &["silent", &here(), how]).start()?;
    net.wait_listen(PORT)?;
    let mut client = Talker::start(&net, Load::Library, &[LOCAL, &port()])?;
    client.ensure_on_tcp(reason).with_context(|| format!("{how}: {:?}", forger.so_far()))?;
    client.end()
}

#[test]
fn a_channel_that_is_silent() -> Result<()> {
    ["mute", "deaf", "hangup", "garbage", "nowhere"].iter().try_for_each(|how| forged(how, "peer-silent"))
}

/// The region says that the nonce is on the socket; the kernel does not.
#[test]
fn a_proof_that_is_claimed() -> Result<()> {
    forged("lie", "proof")
}

/// Another uid answers on the name that the socket announces.
#[test]
fn a_name_held_by_nobody() -> Result<()> {
    if is_root() { forged("nobody", "uid") } else { Ok(()) }
}

/// The same for a client in a user namespace, where the server's uid and nobody's look alike: 65534. It asks whoever has the name, and
/// no byte of the stream goes there without a proof.
#[test]
fn a_name_held_by_nobody_seen_from_a_user_namespace() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    for map in [&["-U"][..], &["-U", "-r"]] {
        for (how, reason) in [("nobody", "peer-silent"), ("nobody-lie", "proof")] {
            let net = Net::new()?;
            let forger = hostile(&net, &["silent", &here(), how]).start()?;
            net.wait_listen(PORT)?;
            let mut before = vec!["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "unshare"];
            before.extend(map);
            let mut client = Talker::start_through(&net, Load::Library, &before, &[LOCAL, &port()])?;
            client.ensure_on_tcp(reason).with_context(|| format!("{map:?}, {how}: {:?}", forger.so_far()))?;
            client.end()?;
        }
    }
    Ok(())
}

/// Somebody takes the name of a server to another network namespace: nothing is reached from there, and nobody comes there.
#[test]
fn a_name_held_in_another_network_namespace() -> Result<()> {
    for who in everybody() {
        let net = Net::new()?;
        let server = server(&net, Load::Library, "epoll", &[])?;
        let mut elsewhere = hostile_as(&net, who, &["elsewhere", &here()]).start()?;
        eventually("the name is held", || {
            ensure!(!elsewhere.gone()?, "{who:?}: {:?}", elsewhere.so_far());
            Ok(elsewhere.so_far().0.contains("holds the name"))
        })?;
        let mut client = Talker::start(&net, Load::Library, &[LOCAL, &port()])?;
        let c = client.ensure_accelerated().with_context(|| format!("{who:?}"))?;
        ensure!(c["peer_pid"] == server.pid(), "{who:?}: {c}");
        client.end()?;
        ensure!(!elsewhere.gone()?, "{who:?}: {:?}", elsewhere.so_far());
        let said = elsewhere.so_far().0;
        ensure!(said == "holds the name\n", "{who:?}: {said}");
    }
    Ok(())
}

/// A requester names somebody else's connection: nothing of it is lost, nothing comes to the requester, and it goes on with its real
/// peer. `hostile` starts the program that breaks the rules; what it has said.
fn name_a_foreign_one<'a>(
    net: &'a Net,
    mut server: Running<'a>,
    load: Load,
    is_another_user: bool,
    hostile: impl FnOnce(&[&str]) -> Result<Running<'a>>,
) -> Result<String> {
    // Announced, and too young for an offer of its own until the thief has come.
    let late = ["env", "SMCR_SWITCH_OPS=1000", "SMCR_SWITCH_BYTES=1000000"];
    let mut victim = Talker::start_through(net, load, &late, &[LOCAL, &port(), "7200"])?;
    victim.exchange(20)?;
    let mut thief = hostile(&["foreign", &here(), "127.0.0.1:7200"])?;
    eventually("the thief's offer", || {
        victim.exchange(40)?;
        ensure!(!thief.gone()?, "{:?}", thief.so_far());
        Ok(thief.so_far().0.contains("taken"))
    })?;
    for _ in 0..100 {
        victim.exchange(20_000)?;
    }
    let said = thief.so_far().0.trim().to_string();
    // Before anything is shared: a proxy could be had to prove for another user.
    ensure!(!is_another_user || said.contains("not taken"), "{said}");
    victim.end()?;
    let ended = thief.wait(DEADLINE)?;
    ensure!(ended.status.success(), "{ended}");
    ensure!(!server.gone()?, "{:?}", server.so_far());
    Ok(said)
}

#[test]
fn a_foreign_connection_is_named() -> Result<()> {
    let modes = ["threads", "epoll", "raw"];
    let by_others = modes.into_iter().zip(everybody().into_iter().skip(1));
    for (mode, who) in modes.map(|mode| (mode, None)).into_iter().chain(by_others) {
        for load in Load::BOTH {
            let net = Net::new()?;
            let server = server(&net, Load::Library, mode, &[])?;
            let said = name_a_foreign_one(&net, server, load, who.is_some(), |args| hostile_as(&net, who, args).start())
                .with_context(|| format!("{mode}, {who:?}, {load:?}"))?;
            println!("{mode}, {who:?}, {load:?}: {said}");
        }
    }
    Ok(())
}

/// The same addresses and ports in two network namespaces: each client has its own server.
#[test]
fn two_namespaces_with_the_same_addresses() -> Result<()> {
    let nets = [Net::new()?, Net::new()?];
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for net in &nets {
        servers.push(server(net, Load::Library, "epoll", &[LOCAL])?);
        clients.push(Talker::start(net, Load::Library, &[LOCAL, &port(), "7300"])?);
    }
    for (client, server) in clients.iter_mut().zip(&servers) {
        let c = client.ensure_accelerated()?;
        ensure!(c["peer_pid"] == server.pid(), "{c}");
    }
    clients.into_iter().try_for_each(Talker::end)
}

/// Every uid outside is 65534 in a user namespace. The server sees its own user there: memory.
#[test]
fn a_client_in_a_user_namespace() -> Result<()> {
    if !is_root() {
        return Ok(());
    }
    let net = Net::new()?;
    let _server = server(&net, Load::Library, "epoll", &[])?;
    for before in [&["unshare", "-U"][..], &["unshare", "-U", "-r"]] {
        let mut client = Talker::start_through(&net, Load::Library, before, &[LOCAL, &port()])?;
        client.ensure_accelerated().with_context(|| format!("{before:?}"))?;
        client.end()?;
    }
    Ok(())
}

/// Starts a program as another container with the same network has it: PID and mount namespaces of its own with their own /proc, and
/// a user namespace but for the first.
const CONTAINERS: [&[&str]; 3] = [
    &["unshare", "-p", "-m", "--mount-proc", "--kill-child"],
    &["unshare", "-U", "-p", "-m", "--mount-proc", "--kill-child"],
    &["unshare", "-U", "-r", "-p", "-m", "--mount-proc", "--kill-child"],
];

/// The kernel refuses a new /proc where parts of the one that is there are hidden, as they are in most containers.
fn can_contain() -> Result<bool> {
    let net = Net::new()?;
    for container in CONTAINERS {
        let ended = Program::new(&net, Load::Native, container[0]).args(&container[1..]).args(["true"]).start()?.wait(DEADLINE)?;
        if !ended.status.success() {
            println!("left out: no container can be made here: {ended}");
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whoever comes from there is served, and moves to memory: the kernel says that he is the server's user.
#[test]
fn a_client_in_another_container() -> Result<()> {
    if !is_root() || !can_contain()? {
        return Ok(());
    }
    for container in CONTAINERS {
        let net = Net::new()?;
        let server = server(&net, Load::Library, "epoll", &[])?;
        let mut client = Talker::start_through(&net, Load::Library, container, &[LOCAL, &port()])?;
        client.exchange(3_000_000)?;
        let accelerated = counter(server.pid(), "accelerated")?;
        ensure!(accelerated == 1, "{container:?}: it stays on TCP");
        client.end()?;
    }
    Ok(())
}

/// Who relays from another container, or names a connection that is not its own, gets no memory and no byte.
#[test]
fn another_container_with_the_same_network() -> Result<()> {
    if !is_root() || !can_contain()? {
        return Ok(());
    }
    let another_user = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"];
    for (user, reason) in [(&[][..], "peer-silent"), (&another_user[..], "uid")] {
        let net = Net::new()?;
        let before = [user, CONTAINERS[1]].concat();
        let inside = |args: &[&str]| {
            let line = [&before[1..], &[env!("CARGO_BIN_EXE_hostile")], args].concat();
            Program::new(&net, Load::Native, before[0]).args(line).start()
        };
        let server = server(&net, Load::Library, "epoll", &[])?;

        let relay = inside(&["relay", &here(), "7100"])?;
        net.wait_listen(7100)?;
        let mut relayed = Talker::start(&net, Load::Library, &[LOCAL, "7100"])?;
        relayed.ensure_on_tcp(reason).with_context(|| format!("{user:?}: {:?}", relay.so_far()))?;
        relayed.end()?;

        let said = name_a_foreign_one(&net, server, Load::Library, !user.is_empty(), inside).with_context(|| format!("{user:?}"))?;
        println!("{user:?}: {said}");
    }
    Ok(())
}

/// Two servers with one port on two addresses.
#[test]
fn two_servers_with_one_port() -> Result<()> {
    let net = Net::new()?;
    let mut servers = Vec::new();
    for address in [LOCAL, "127.0.0.2"] {
        servers.push((address, server(&net, Load::Library, "threads", &[address])?));
    }
    // The second one listens a moment later than the first.
    for (address, server) in &servers {
        let mut client = connect(&net, address)?;
        let c = client.ensure_accelerated()?;
        ensure!(c["peer_pid"] == server.pid(), "{address}: {c}");
        client.end()?;
    }
    Ok(())
}

/// A client, once its server is there.
fn connect<'a>(net: &'a Net, address: &str) -> Result<Talker<'a>> {
    let mut last = None;
    eventually("connect", || {
        let mut t = Talker::start(net, Load::Library, &[address, &port()])?;
        if t.exchange(10).is_ok() {
            last = Some(t);
        }
        Ok(last.is_some())
    })?;
    last.context("connect")
}

/// Pre-forked workers, one listener for each of several processes, a process for each connection:
/// the one that accepted is the one that answers.
#[test]
fn many_processes_with_one_port() -> Result<()> {
    for mode in ["prefork", "reuseport", "fork"] {
        let net = Net::new()?;
        let _server: Running = server(&net, Load::Library, mode, &[])?;
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(Talker::start(&net, Load::Library, &[LOCAL, &port()])?);
        }
        let mut answered = HashSet::new();
        for client in &mut clients {
            let c = client.ensure_accelerated().with_context(|| mode)?;
            let pid = c["peer_pid"].as_i64().context("pid")?;
            let theirs = connections(pid as i32)?;
            let port = c["local"].as_str().context("local")?.rsplit(':').next().context("port")?;
            ensure!(theirs.iter().any(|t| t["peer"].as_str().is_some_and(|p| p.ends_with(port))), "{mode}: {c}\n{theirs:?}");
            answered.insert(pid);
        }
        println!("{mode}: {} processes", answered.len());
        ensure!(mode != "fork" || answered.len() == 8, "{answered:?}");
        clients.into_iter().try_for_each(Talker::end)?;
    }
    Ok(())
}

/// A process that connects to itself.
#[test]
fn a_process_connects_to_itself() -> Result<()> {
    const SCRIPT: &str = "
import socket, threading, hashlib
l = socket.socket(); l.bind(('127.0.0.1', 7400)); l.listen()
c = socket.create_connection(('127.0.0.1', 7400)); s, _ = l.accept()
def echo():
    while b := s.recv(65536): s.sendall(b)
    s.close()
t = threading.Thread(target=echo); t.start()
c.settimeout(30)
for i in range(2000):
    b = bytes((i + k) & 255 for k in range(64)) * 16
    c.sendall(b); g = b''
    while len(g) < len(b): g += c.recv(65536)
    assert g == b, i
c.shutdown(socket.SHUT_WR); t.join(); print('whole')
";
    let net = Net::new()?;
    let share = measure(&net, || {
        let out = Program::new(&net, Load::Library, smcr_tests::twice::python()?).args(["-c", SCRIPT]).run_ok()?;
        ensure!(out == "whole\n", "{out}");
        Ok(2 * 2000 * 1024)
    })?;
    share.ensure_off_tcp("to itself")
}

/// A dual-stack listener, and clients of all three kinds.
#[test]
fn dual_stack_and_mapped_addresses() -> Result<()> {
    let net = Net::new()?;
    let _server = server(&net, Load::Library, "epoll", &[])?;
    for address in [LOCAL, "127.0.0.3", "::1", "::ffff:127.0.0.1"] {
        let mut client = Talker::start(&net, Load::Library, &[address, &port()])?;
        client.ensure_accelerated().with_context(|| address)?;
        client.end()?;
    }
    Ok(())
}

/// The foreign tool's own check: it fails where nobody is announced.
#[test]
fn a_plain_server_is_never_announced() -> Result<()> {
    let net = Net::new()?;
    let _server = server(&net, Load::Native, "threads", &[])?;
    let mut client = Talker::start(&net, Load::Library, &[LOCAL, &port()])?;
    client.ensure_on_tcp("peer-plain")?;
    client.end()?;
    ensure!(attack(&net, &["honest", &here()]).is_err());
    Ok(())
}
