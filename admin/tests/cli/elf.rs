//! The smallest ELF files that differ in what smcrctl looks for.

const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SECTION: usize = 64;

/// A program with this loader (none = static) and, if asked, the section that Go leaves.
pub fn program(loader: Option<&str>, go: bool) -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let names = b"\0.go.buildinfo\0.shstrtab\0";
    let loader = loader.map(|l| format!("{l}\0")).unwrap_or_default();
    let loader_at = HEADER + SEGMENT;
    let names_at = loader_at + loader.len();
    let sections_at = names_at + names.len();
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(HEADER, 0);
    let put = |file: &mut Vec<u8>, at: usize, bytes: &[u8]| {
        if file.len() < at + bytes.len() {
            file.resize(at + bytes.len(), 0);
        }
        file[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(&mut file, 16, &2u16.to_le_bytes());
    put(&mut file, 18, &machine.to_le_bytes());
    put(&mut file, 20, &1u32.to_le_bytes());
    put(&mut file, 32, &(HEADER as u64).to_le_bytes());
    put(&mut file, 40, &(sections_at as u64).to_le_bytes());
    for (at, n) in [(52, HEADER), (54, SEGMENT), (58, SECTION), (60, 3), (62, 2)] {
        put(&mut file, at, &(n as u16).to_le_bytes());
    }
    let segments = u16::from(!loader.is_empty());
    put(&mut file, 56, &segments.to_le_bytes());
    put(&mut file, HEADER, &3u32.to_le_bytes());
    for (at, n) in [(8, loader_at), (32, loader.len())] {
        put(&mut file, HEADER + at, &(n as u64).to_le_bytes());
    }
    put(&mut file, loader_at, loader.as_bytes());
    put(&mut file, names_at, names);
    // Section 0 is empty; 1 is Go's, or named by nothing; 2 holds the names.
    put(&mut file, sections_at + 3 * SECTION - 1, &[0]);
    let go_name = if go { 1u32 } else { 0 };
    put(&mut file, sections_at + SECTION, &go_name.to_le_bytes());
    put(&mut file, sections_at + SECTION + 4, &1u32.to_le_bytes());
    let second = sections_at + 2 * SECTION;
    put(&mut file, second, &15u32.to_le_bytes());
    put(&mut file, second + 4, &3u32.to_le_bytes());
    put(&mut file, second + 24, &(names_at as u64).to_le_bytes());
    put(&mut file, second + 32, &(names.len() as u64).to_le_bytes());
    file
}
