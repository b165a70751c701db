//! One end of a measurement, in a process of its own that may have the library loaded. Talks
//! plain blocking TCP. Started by `bench` and `check`.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde_json::Value;

use super::{Measured, is_in_handshake};
use crate::cli::{Node, Who};
use crate::out;
use crate::procfs;
use crate::scan::{Connection, Host};
use crate::sock;

/// First bytes of a connection, then the kind and the size of a message.
const HELLO: [u8; 4] = *b"SmBn";
const PING: u32 = 1;
const STREAM: u32 = 2;
/// Messages may be no larger than this.
const MOST: u32 = 16 << 20;
/// Before the measurement, so that a connection had time to switch.
const WARM_UP: Duration = Duration::from_millis(200);
/// Answers whose times are kept, at most.
const MOST_TIMES: usize = 4_000_000;
/// How long a silent connection is watched.
const WATCH: Duration = Duration::from_millis(200);
/// The same as long as a handshake is on its way, which declines by itself after 6 s.
const HANDSHAKE: Duration = Duration::from_secs(8);

pub fn run(node: &Node) -> anyhow::Result<()> {
    match node {
        Node::Server { at } => serve(*at),
        Node::Client { to, kind, size, seconds } => {
            let measured = measure(*to, kind, *size, *seconds)?;
            out::print(&(serde_json::to_string(&measured)? + "\n"))
        }
        Node::Probe { to } => probe(*to),
        Node::Loaded { name } => {
            let yes = procfs::maps(std::process::id(), name) == Some(true);
            out::print(if yes { "yes\n" } else { "no\n" })
        }
    }
}

fn serve(at: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen at {at}"))?;
    out::print(&format!("{}\n", listener.local_addr()?))?;
    // Whoever started us holds our input; with it, our reason to be here ends.
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
    loop {
        let (stream, _) = match listener.accept() {
            Ok(pair) => pair,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e).context("cannot accept"),
        };
        thread::spawn(move || {
            // The peer's end of it tells what went wrong.
            let _ = answer(stream);
        });
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut hello = [0; 12];
    stream.read_exact(&mut hello)?;
    let word = |at: usize| {
        let rest = hello.get(at..).and_then(|r| r.first_chunk());
        u32::from_le_bytes(rest.copied().unwrap_or_default())
    };
    let (kind, size) = (word(4), word(8));
    if hello[..4] != HELLO || size == 0 || size > MOST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut buffer = vec![0; size as usize];
    match kind {
        PING => loop {
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
        },
        STREAM => {
            let mut sum = 0u64;
            loop {
                match stream.read(&mut buffer)? {
                    0 => return stream.write_all(&sum.to_le_bytes()),
                    n => sum += n as u64,
                }
            }
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn measure(to: SocketAddr, kind: &str, size: u32, seconds: f64) -> anyhow::Result<Measured> {
    let code = match kind {
        "ping" => PING,
        "stream" => STREAM,
        _ => bail!("no measurement `{kind}`; there are ping and stream"),
    };
    let time = Duration::try_from_secs_f64(seconds).context("seconds must be a time")?;
    let mut stream = TcpStream::connect(to).map_err(|e| anyhow!("no connection to {to}: {e}; start smcrctl bench --listen there"))?;
    stream.set_nodelay(true)?;
    let mut hello = HELLO.to_vec();
    hello.extend(code.to_le_bytes());
    hello.extend(size.to_le_bytes());
    stream.write_all(&hello)?;
    let mut measured = match code {
        PING => ping(&mut stream, size, time)?,
        _ => send_stream(&mut stream, size, time)?,
    };
    if let Some(c) = own_connection(&stream) {
        measured.mode = Some(c.socket.mode_word());
        if c.socket.tx_medium == 0 && c.socket.rx_medium == 0 {
            measured.reason = Some(c.socket.reason_word());
        }
    } else if procfs::has_library(std::process::id()) == Some(true) {
        measured.reason = Some("the library shows no record of the connection".into());
    }
    Ok(measured)
}

fn ping(stream: &mut TcpStream, size: u32, time: Duration) -> io::Result<Measured> {
    let mut buffer = vec![0x5a; size as usize];
    let mut exchange = |stream: &mut TcpStream| -> io::Result<()> {
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)
    };
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        exchange(stream)?;
    }
    let mut times: Vec<u64> = Vec::with_capacity(1 << 20);
    let mut answers = 0u64;
    let start = Instant::now();
    let mut now = start;
    while now - start < time {
        exchange(stream)?;
        let then = std::mem::replace(&mut now, Instant::now());
        answers += 1;
        if times.len() < MOST_TIMES {
            times.push((now - then).as_nanos() as u64);
        }
    }
    let elapsed = (now - start).as_secs_f64();
    times.sort_unstable();
    let at = |part: f64| {
        let index = (times.len() as f64 * part) as usize;
        times.get(index.min(times.len().saturating_sub(1))).map(|ns| *ns as f64 / 1000.0)
    };
    Ok(Measured {
        kind: "ping".into(),
        size,
        seconds: elapsed,
        per_second: answers as f64 / elapsed,
        p50_us: at(0.5),
        p99_us: at(0.99),
        mode: None,
        reason: None,
    })
}

fn send_stream(stream: &mut TcpStream, size: u32, time: Duration) -> io::Result<Measured> {
    let buffer = vec![0xa5; size as usize];
    let start = Instant::now();
    let mut sent = 0u64;
    while start.elapsed() < time {
        stream.write_all(&buffer)?;
        sent += buffer.len() as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    // Until the last byte was taken at the other end.
    let elapsed = start.elapsed().as_secs_f64();
    if u64::from_le_bytes(count) != sent {
        return Err(io::Error::other("the peer counted other bytes than were sent"));
    }
    Ok(Measured {
        kind: "stream".into(),
        size,
        seconds: elapsed,
        per_second: sent as f64 / elapsed,
        p50_us: None,
        p99_us: None,
        mode: None,
        reason: None,
    })
}

fn probe(to: SocketAddr) -> anyhow::Result<()> {
    let stream = TcpStream::connect(to).with_context(|| format!("no connection to {to}"))?;
    let until = Instant::now() + HANDSHAKE;
    loop {
        thread::sleep(WATCH);
        let said = own_connection(&stream).map_or(Value::Null, |c| sock::as_json(&c));
        if !is_in_handshake(&said) || Instant::now() > until {
            return out::print(&format!("{said}\n"));
        }
    }
}

/// What the library in this process shows of a connection of ours.
fn own_connection(stream: &TcpStream) -> Option<Connection> {
    use std::os::fd::AsRawFd;
    let who = Who { pid: Some(std::process::id()), ..Who::default() };
    let found = Host::scan(&who).ok()?.connections(&who);
    found.into_iter().find(|c| c.socket.fd == stream.as_raw_fd())
}
