//! Command lines in documents: each names a command that there is, with options that it has.

use std::fs;
use std::path::Path;

use crate::bed::Bed;

/// What is written of smcrctl in a document: the rest of the line, or of what is quoted.
fn calls(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        // Quoted are the parts between backquotes; in a block, which may be no commands at all, lines that begin with one.
        let parts: Vec<&str> = match fenced {
            true => Some(line).into_iter().filter(|line| line.starts_with("smcrctl ")).collect(),
            false => line.split('`').skip(1).step_by(2).collect(),
        };
        for part in parts {
            // Where a shell would begin a command; up to where it ends, or a sentence goes on.
            for call in part.split(';').filter_map(|command| command.trim().strip_prefix("smcrctl ")) {
                let end = call.find(['#', '&', '|', ')', ',']).unwrap_or(call.len());
                found.push(call[..end].trim());
            }
        }
    }
    found
}

#[test]
fn documents_call_what_there_is() {
    let bed = Bed::new();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut documents = vec![root.join("README.md"), root.join("bpf/README.md"), root.join("admin/packaging/smcr.toml")];
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    documents.extend(docs.filter(|path| path.extension().is_some_and(|e| e == "md")));
    let mut seen = 0;
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        for call in calls(&text) {
            let place = format!("{}: smcrctl {call}", document.display());
            let mut words = call.split_whitespace().peekable();
            // COMMAND and ... stand for any.
            let is_command = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
            let Some(command) = words.next_if(is_command) else { continue };
            let mut path = vec![command];
            let help = |path: &[&str]| {
                let output = bed.smcrctl(&[path, &["--help"]].concat()).output().unwrap();
                assert!(output.status.success(), "{place}");
                String::from_utf8(output.stdout).unwrap()
            };
            let mut text = help(&path);
            if text.contains("\nCommands:\n")
                && let Some(word) = words.next_if(is_command)
            {
                path.push(word);
                text = help(&path);
            }
            for option in words.take_while(|word| *word != "--").filter(|word| word.starts_with('-')) {
                let name = option.split('=').next().unwrap_or(option);
                let has = |end: char| text.contains(&format!(" {name}{end}"));
                assert!([' ', ',', '\n'].into_iter().any(has), "{place}: no option {name}");
            }
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen}");
}
