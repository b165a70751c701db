//! Arrays of records in a page that is not trusted, and the fields of a record. Used by the parent.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::FamilyError;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// An array of records in a page.
pub struct Array {
    pub first: u64,
    pub size: u64,
    pub count: u64,
    /// Records that there may be.
    pub most: u64,
    /// Bytes that a record must have.
    pub least: usize,
    /// Bytes of a record that are of use.
    pub want: usize,
    pub name: &'static str,
}

impl Array {
    pub fn each(&self, file: &File, len: u64, mut visit: impl FnMut(u32, Bytes<'_>)) -> Result<(), FamilyError> {
        if self.count == 0 {
            return Ok(());
        }
        let wrong = FamilyError::Layout(self.name);
        // 2^32 records of 2^32 bytes from 2^32 on: no overflow in 64 bits but by the last few.
        let end = self.size.checked_mul(self.count).and_then(|n| n.checked_add(self.first));
        if self.size < self.least as u64 || self.count > self.most || end.is_none_or(|e| e > len) {
            return Err(wrong);
        }
        let size = self.size as usize;
        let want = self.want.min(size);
        // Small records are read many at once, of large ones only the part of use.
        let at_once = if size > CHUNK / 64 { 1 } else { CHUNK / size };
        let at_once = at_once.min(self.count as usize);
        let mut buffer = vec![0; if at_once == 1 { want } else { at_once * size }];
        let mut index = 0;
        while index < self.count {
            let n = (self.count - index).min(at_once as u64);
            let bytes = buffer.len().min(n as usize * size);
            let got = read_some(file, &mut buffer[..bytes], self.first + index * self.size)?;
            for (i, record) in buffer[..got].chunks(size).enumerate() {
                if record.len() >= self.least {
                    visit((index + i as u64) as u32, Bytes(&record[..want.min(record.len())]));
                }
            }
            index += n;
        }
        Ok(())
    }
}

/// Reads until the buffer is full or the file ends.
pub fn read_some(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Fields of a record; beyond its end there are zeroes, as in a record of an older library.
#[derive(Clone, Copy)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    pub fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let rest = self.0.get(at..).and_then(|r| r.first_chunk::<N>());
        rest.copied().unwrap_or([0; N])
    }

    pub fn u8(&self, at: usize) -> u8 {
        self.array::<1>(at)[0]
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }
}
