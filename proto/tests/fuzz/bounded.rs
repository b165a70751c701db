//! A bounded run of a fuzz target: every input of `fuzz/corpus`, and mutations of them. Called by the
//! fuzz tests of smcr-proto and smcr-admin.
//!
//! The mutations are others each time. SMCR_FUZZ_SEED repeats a run, SMCR_FUZZ_ROUNDS (inputs for each target) makes it
//! longer; the seed is printed, and a failure prints the input too. The real fuzzers (`fuzz/`) have the same targets
//! and corpus, and no bound.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

const ROUNDS: u64 = 30_000;

/// Runs a target with its corpus and with mutations of it.
pub fn run(name: &str, function: fn(&[u8])) {
    let seed = number("SMCR_FUZZ_SEED").unwrap_or_else(another_seed);
    let rounds = number("SMCR_FUZZ_ROUNDS").unwrap_or(ROUNDS);
    println!("{name}: SMCR_FUZZ_SEED={seed}");
    let seeds = corpus(name);
    assert!(!seeds.is_empty(), "{name} has no corpus");
    let mut random = Random(seed | 1);
    let check = |input: &[u8], what: &str| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| function(input))) {
            let hex: String = input.iter().map(|b| format!("{b:02x}")).collect();
            eprintln!("{name}, {what}: SMCR_FUZZ_SEED={seed}; the input: {hex}");
            std::panic::resume_unwind(panic);
        }
    };
    for input in &seeds {
        check(input, "from the corpus");
    }
    for round in 0..rounds {
        let mut input = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        mutate(&mut input, other, &mut random);
        check(&input, &format!("round {round}"));
    }
}

/// xorshift64*: no quality is needed, only the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 11) as usize % n.max(1)
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().expect("a number"))
}

fn another_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |t| t.as_nanos() as u64 % 1_000_000_007)
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())).map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Values at which parsers decide.
const EDGES: [u8; 12] = [0, 1, 2, 4, 5, 0x0f, 0x10, 0x2c, 0x7f, 0x80, 0xfe, 0xff];

fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(input.len());
        match random.below(8) {
            0 | 1 if !input.is_empty() => input[at] = random.next() as u8,
            2 | 3 if !input.is_empty() => input[at] = EDGES[random.below(EDGES.len())],
            4 if !input.is_empty() => input[at] ^= 1 << random.below(8),
            5 => input.truncate(at),
            6 => input.insert(at, random.next() as u8),
            _ => {
                let from = random.below(other.len());
                input.splice(at..at, other[from..].iter().copied().take(64));
            }
        }
    }
    input.truncate(4096);
}
