//! Text for people: tables, numbers with units, colour where a terminal wants it. Used by every
//! command that prints.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;

/// Writes to standard output; a closed pipe is an error that `main` takes for the end.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a value as indented JSON.
pub fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// A remark beside the result, for people: standard error.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// A colour of the terminal.
#[derive(Clone, Copy)]
pub enum Colour {
    Good,
    Bad,
    Warn,
    Dim,
}

/// The text in a colour, if standard output is a terminal and NO_COLOR is not set.
pub fn paint(colour: Colour, text: &str) -> String {
    if !colourful() {
        return text.to_string();
    }
    let code = match colour {
        Colour::Good => "32",
        Colour::Bad => "31",
        Colour::Warn => "33",
        Colour::Dim => "2",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Asked once: a table may have ten thousand words to colour.
fn colourful() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) || std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        !refused && std::io::stdout().is_terminal()
    })
}

/// Columns as wide as their widest cell.
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with these heads; a head that begins with `>` is a column of numbers.
    pub fn new(heads: &[&str]) -> Table {
        let right = heads.iter().map(|h| h.starts_with('>')).collect();
        let heads = heads.iter().map(|h| h.trim_start_matches('>').to_string()).collect();
        Table { rows: vec![heads], right }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn render(&self) -> String {
        let columns = self.right.len();
        let mut widths = vec![0; columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), right) in row.iter().zip(&widths).zip(&self.right) {
                let fill = " ".repeat(width - cell.chars().count().min(*width));
                let _ = if *right { write!(line, "{fill}{cell}  ") } else { write!(line, "{cell}{fill}  ") };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Text from elsewhere, such as a program's name, without what could steer a terminal.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Bytes with a binary unit.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 || unit == "TiB" {
            return if unit == "B" { format!("{n} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    unreachable!("the last unit returns")
}

/// A rate per second with a decimal unit.
pub fn rate(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.2}G", n / 1e9),
        n if n >= 1e6 => format!("{:.2}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["Name", ">Number"]);
        table.row(vec!["a".into(), "1".into()]);
        table.row(vec!["long one".into(), "12345678".into()]);
        assert_eq!(table.render(), "Name        Number\na                1\nlong one  12345678\n");
    }

    #[test]
    fn units() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(rate(12_345.0), "12.3k");
    }

    #[test]
    fn names_cannot_steer_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb"), "a?[2Jb");
    }
}
