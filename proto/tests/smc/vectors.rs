//! Reads the captures in `tests/vectors` (their first lines say how they were made).

/// One event of a capture.
#[derive(Debug, Clone)]
pub struct Line {
    /// From client to server.
    pub from_client: bool,
    pub what: What,
}

#[derive(Debug, Clone)]
pub enum What {
    Clc(Vec<u8>),
    Llc(Vec<u8>),
    Cdc(Vec<u8>),
    /// Address, key and length of an RDMA write.
    Write(u64, u32, u32),
    /// Anything else: TCP options, data, FIN.
    Other,
}

pub fn kernel_smcr() -> Vec<Line> {
    parse(include_str!("../vectors/kernel-smcr.hex"))
}

pub fn client_declines() -> Vec<Line> {
    parse(include_str!("../vectors/client-declines.hex"))
}

pub fn plain_server() -> Vec<Line> {
    parse(include_str!("../vectors/plain-server.hex"))
}

pub fn smcr_then_plain_client() -> Vec<Line> {
    parse(include_str!("../vectors/smcr-then-plain-client.hex"))
}

/// The CLC messages of a capture.
pub fn clc(lines: &[Line]) -> Vec<&[u8]> {
    lines
        .iter()
        .filter_map(|line| match &line.what {
            What::Clc(bytes) => Some(bytes.as_slice()),
            _ => None,
        })
        .collect()
}

fn parse(text: &str) -> Vec<Line> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(parse_line).collect()
}

fn parse_line(line: &str) -> Line {
    let words: Vec<&str> = line.split(' ').collect();
    let what = match words[1] {
        "clc" => What::Clc(unhex(words[2])),
        "llc" => What::Llc(unhex(words[2])),
        "cdc" => What::Cdc(unhex(words[2])),
        "write" => What::Write(u64::from_str_radix(words[2], 16).unwrap(), u32::from_str_radix(words[3], 16).unwrap(), words[4].parse().unwrap()),
        "syn" | "syn-ack" | "tcp" | "fin" => What::Other,
        other => panic!("unknown event {other}"),
    };
    Line { from_client: words[0] == "c>s", what }
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}
