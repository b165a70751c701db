//! Owns: wrk as a client of nginx: what it read, its errors, and the bodies that it compares with the file by `lua/bodies.lua`.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::apps::{LONG, Nginx, PORT};
use crate::library::source_dir;
use crate::net::Net;
use crate::process::{Load, Program, Running, which};

/// With its own 2 s it counts what a busy machine answers later as errors.
const PATIENCE: [&str; 2] = ["--timeout", "60s"];

/// What wrk says: bytes read, and lines about errors.
pub fn wrk(net: &Net, load: Load, connections: u32, seconds: u32, path: &str) -> Result<(u64, String)> {
    let out = Program::new(net, load, which("wrk")?)
        .args(["-t", "1", "-c", &connections.to_string(), "-d", &format!("{seconds}s")])
        .args(PATIENCE)
        .args([format!("http://127.0.0.1:{PORT}/{path}")])
        .run_ok()?;
    Ok((wrk_bytes(&out)?, out))
}

/// From "  12345 requests in 2.00s, 1.50GB read".
pub fn wrk_bytes(out: &str) -> Result<u64> {
    let line = out.lines().find(|l| l.contains(" requests in ")).context("wrk")?;
    let size = line.rsplit(", ").next().and_then(|s| s.strip_suffix(" read")).context("wrk")?;
    let (number, unit) = size.split_at(size.find(|c: char| c.is_ascii_alphabetic()).context("wrk")?);
    let power = ["B", "KB", "MB", "GB"].iter().position(|known| *known == unit).with_context(|| size.to_string())?;
    Ok((number.parse::<f64>()? * 1024_f64.powi(power as i32)) as u64)
}

/// "Socket errors" as wrk counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    pub connect: u64,
    pub read: u64,
    pub write: u64,
    pub timeout: u64,
}

impl Errors {
    /// From "  Socket errors: connect 0, read 48, write 0, timeout 0"; no such line: none.
    fn of(out: &str) -> Result<Errors> {
        let Some(line) = out.lines().find_map(|l| l.trim().strip_prefix("Socket errors: ")) else {
            return Ok(Errors::default());
        };
        let count = |name: &str| -> Result<u64> {
            let word = line.split(", ").find_map(|w| w.strip_prefix(name)?.strip_prefix(' ')).with_context(|| line.to_string())?;
            Ok(word.parse()?)
        };
        Ok(Errors { connect: count("connect")?, read: count("read")?, write: count("write")?, timeout: count("timeout")? })
    }

    /// None that `native` had not. Of connections that the server closes while a request is on its way to it, natively too, there
    /// may be as many as are open at that moment, `at_most`: how many that are is the order of two processes, and none natively is chance.
    pub fn ensure_as(&self, native: &Errors, at_most: u64) -> Result<()> {
        let read = native.read.max(at_most);
        let is_as = self.connect <= native.connect && self.read <= read && self.write <= native.write && self.timeout <= native.timeout;
        ensure!(is_as, "{self:?}, natively {native:?}");
        Ok(())
    }
}

/// A wrk that asks nginx for a file for some seconds, and compares each body with it. `header` goes with each request.
pub fn comparing<'a>(nginx: &Nginx<'a>, connections: u32, seconds: u32, name: &str, header: Option<&str>) -> Result<Running<'a>> {
    Program::new(nginx.net, nginx.load, which("wrk")?)
        .args(["-t", "1", "-c", &connections.to_string(), "-d", &format!("{seconds}s")])
        .args(PATIENCE)
        .args([Path::new("-s"), &source_dir().join("lua/bodies.lua")])
        .args(header.iter().flat_map(|h| ["-H", h]))
        .args([format!("http://127.0.0.1:{PORT}/{name}"), "--".into()])
        .args([nginx.dir.path().join("html").join(name)])
        .start()
}

/// Its end: every answer was the whole file. The bytes that it read, and its errors.
pub fn compared(traffic: Running) -> Result<(u64, Errors)> {
    let ended = traffic.wait(LONG)?;
    ensure!(ended.status.success() && !ended.out.contains("Non-2xx"), "{ended}");
    let bodies = ended.out.lines().find_map(|l| l.strip_prefix("bodies: ")?.strip_suffix(" different"));
    let (same, different) = bodies.and_then(|b| b.split_once(" same, ")).with_context(|| ended.to_string())?;
    ensure!(same.parse::<u64>()? > 0 && different == "0", "{ended}");
    Ok((wrk_bytes(&ended.out)?, Errors::of(&ended.out)?))
}
