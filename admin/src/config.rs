//! The configuration file: TOML that sets attributes, read into a layer and edited in place so
//! that comments stay. Used by `settings`, `effective` and `config_command`.

use std::path::Path;

use anyhow::{Context, anyhow};
use smcr_proto::control::{Attribute, Layer, Policy, Profile};
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, TableLike, Value};

use crate::interfaces;

/// The name of the array of tables that holds the rules.
const RULE: &str = "rule";
/// The words of a rule, in the order in which they are written.
pub const RULE_WORDS: [&str; 6] = ["use", "program", "role", "uid", "addr", "port"];

/// Reads a file; one that is not there sets nothing. `absent` hears of each interface that has no address now.
pub fn load(path: &Path, mut absent: impl FnMut(String)) -> anyhow::Result<Layer> {
    let named = |e: anyhow::Error| anyhow!("{}: {e}", path.display());
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, |e| absent(named(e).to_string())).map_err(named),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Layer::default()),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Reads the text of a file. The message of an error begins with the number of the line. An interface without an
/// address is none, of which `absent` hears: at the start of a machine it has none yet, and all else in the file holds.
pub fn parse(text: &str, mut absent: impl FnMut(anyhow::Error)) -> anyhow::Result<Layer> {
    let document = toml_edit::Document::parse(text).map_err(|e| at(text, e.span(), &e.message().replace('\n', ", ")))?;
    let mut layer = Layer::default();
    if let Some(item) = document.get("profile") {
        let name = item.as_str().unwrap_or_default();
        let profile = Profile::from_name(name).ok_or_else(|| at(text, item.span(), &unknown_profile(name)))?;
        profile.apply(&mut layer);
    }
    for (name, item) in document.iter() {
        if name == "profile" {
            continue;
        }
        let attribute = match name {
            RULE => Attribute::Rules,
            _ => Attribute::from_name(name).filter(|a| *a != Attribute::Rules).ok_or_else(|| at(text, item.span(), &unknown_attribute(name)))?,
        };
        let mut value = as_text(attribute, item).map_err(|e| at(text, item.span(), &e))?;
        if attribute == Attribute::IpAddrList {
            let later = |e| absent(at(text, item.span(), &format!("{name}: {e}")));
            value = interfaces::resolve_present(&value, later)?;
        }
        set(&mut layer, attribute, &value).map_err(|e| at(text, item.span(), &format!("{name}: {e:#}")))?;
    }
    Ok(layer)
}

/// Sets an attribute of a layer from its text; addresses may be names of interfaces.
pub fn set(layer: &mut Layer, attribute: Attribute, text: &str) -> anyhow::Result<()> {
    let resolved = match attribute {
        Attribute::IpAddrList => interfaces::resolve(text)?,
        _ => text.to_string(),
    };
    let mut values = Policy::default();
    values.parse(attribute, &resolved).map_err(|e| anyhow!("{e}"))?;
    layer.set(attribute, &values);
    Ok(())
}

pub fn unknown_attribute(name: &str) -> String {
    let known: Vec<_> = Attribute::ALL.iter().map(|a| a.name()).collect();
    format!("no attribute `{name}`; there are {}", known.join(", "))
}

pub fn unknown_profile(name: &str) -> String {
    let known: Vec<_> = smcr_proto::control::PROFILES.iter().map(|p| p.name).collect();
    format!("no profile `{name}`; there are {}", known.join(", "))
}

/// An error in one line, whatever the file made the message repeat.
fn at(text: &str, span: Option<std::ops::Range<usize>>, message: &str) -> anyhow::Error {
    let message = message.replace(char::is_control, "?");
    let Some(span) = span else {
        return anyhow!("{message}");
    };
    let before = text.get(..span.start).unwrap_or(text);
    anyhow!("line {}: {message}", before.matches('\n').count() + 1)
}

/// A TOML value in the form of the command line.
fn as_text(attribute: Attribute, item: &Item) -> Result<String, String> {
    if attribute == Attribute::Rules {
        let tables = rule_tables(item).ok_or("write each rule as a table [[rule]]")?;
        let rules: Result<Vec<_>, _> = tables.iter().map(|t| rule_text(*t)).collect();
        return Ok(rules?.join("; "));
    }
    let wrong = || format!("{} cannot have a value of type {}", attribute.name(), item.type_name());
    match item.as_value().ok_or_else(wrong)? {
        Value::Array(items) => {
            let texts: Option<Vec<_>> = items.iter().map(scalar).collect();
            Ok(texts.ok_or_else(wrong)?.join(","))
        }
        value => scalar(value).ok_or_else(wrong),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.value().clone()),
        Value::Integer(i) => Some(i.value().to_string()),
        Value::Boolean(b) => Some(u8::from(*b.value()).to_string()),
        _ => None,
    }
}

fn rule_tables(item: &Item) -> Option<Vec<&dyn TableLike>> {
    if let Some(tables) = item.as_array_of_tables() {
        return Some(tables.iter().map(|t| t as &dyn TableLike).collect());
    }
    let array = item.as_array()?;
    array.iter().map(|v| v.as_inline_table().map(|t| t as &dyn TableLike)).collect()
}

fn rule_text(table: &dyn TableLike) -> Result<String, String> {
    let mut words = Vec::new();
    for (key, item) in table.iter() {
        if !RULE_WORDS.contains(&key) {
            return Err(format!("a rule has no `{key}`; it has {}", RULE_WORDS.join(", ")));
        }
        let value = item.as_value().and_then(scalar);
        let value = value.ok_or_else(|| format!("`{key}` of a rule must be a string or number"))?;
        if value.contains([';', ' ', '\t']) {
            return Err(format!("`{key}` of a rule must not have blanks or `;`"));
        }
        words.push(format!("{key}={value}"));
    }
    Ok(words.join(" "))
}

/// A file to be edited.
pub struct Editor(DocumentMut);

impl Editor {
    /// Takes the text of a file that [`parse`] accepted.
    pub fn new(text: &str) -> anyhow::Result<Editor> {
        Ok(Editor(text.parse::<DocumentMut>().map_err(|e| at(text, e.span(), &e.message().replace('\n', ", ")))?))
    }

    /// Writes an attribute as the user said it.
    pub fn set(&mut self, attribute: Attribute, text: &str) {
        if attribute == Attribute::Rules {
            self.set_rules(text);
            return;
        }
        let text = text.trim();
        let value = match attribute {
            Attribute::Enabled | Attribute::Strict => Value::from(matches!(text, "1" | "true" | "on" | "yes")),
            // A name, also where it has digits only: 0123 is not 123.
            Attribute::UserEids => Value::from(text),
            _ => match text.parse::<i64>() {
                Ok(number) => Value::from(number),
                Err(_) => Value::from(text),
            },
        };
        self.put(attribute.name(), value);
    }

    /// A remark behind the old value stays behind the new one.
    fn put(&mut self, name: &str, mut value: Value) {
        if let Some(old) = self.0.get(name).and_then(Item::as_value) {
            *value.decor_mut() = old.decor().clone();
        }
        match self.0.get_mut(name) {
            Some(item) => *item = Item::Value(value),
            None => drop(self.0.insert(name, Item::Value(value))),
        }
    }

    /// Sets what the profile names. What an earlier one set beside it stays, as it does in the page.
    pub fn set_profile(&mut self, profile: &Profile) {
        self.write_out_profile();
        for (attribute, _) in profile.values {
            self.unset(*attribute);
        }
        self.put("profile", Value::from(profile.name));
    }

    /// Takes an attribute out. One that a profile sets must be said by the caller to stay unset.
    pub fn unset(&mut self, attribute: Attribute) {
        self.0.remove(match attribute {
            Attribute::Rules => RULE,
            _ => attribute.name(),
        });
    }

    /// Rules that stay keep what is written at them.
    fn set_rules(&mut self, text: &str) {
        let mut tables = ArrayOfTables::new();
        let before = self.0.get(RULE).and_then(Item::as_array_of_tables);
        let mut before: Vec<Table> = before.into_iter().flatten().cloned().collect();
        for rule in text.split(';').map(str::trim).filter(|r| !r.is_empty() && *r != "none") {
            let mut table = Table::new();
            for (key, value) in rule.split_whitespace().filter_map(|w| w.split_once('=')) {
                let value = match value.parse::<i64>() {
                    Ok(number) if key != "program" => toml_edit::value(number),
                    _ => toml_edit::value(value),
                };
                table.insert(key, value);
            }
            let same = before.iter().position(|old| bare(old) == bare(&table));
            tables.push(same.map_or(table, |at| copy(&before.remove(at))));
        }
        if tables.is_empty() {
            self.0.insert(RULE, toml_edit::value(toml_edit::Array::new()));
        } else {
            self.0.insert(RULE, Item::ArrayOfTables(tables));
        }
    }

    /// Replaces the profile by the values that it stands for.
    pub fn expand_profile(&mut self) {
        self.write_out_profile();
        self.0.remove("profile");
    }

    fn write_out_profile(&mut self) {
        let profile = self.0.get("profile").and_then(Item::as_str).and_then(Profile::from_name);
        for (attribute, text) in profile.map_or(&[][..], |p| p.values) {
            if self.0.get(attribute.name()).is_none() {
                self.set(*attribute, text);
            }
        }
    }
}

/// What a rule says, without what is written at it.
fn bare(rule: &Table) -> Vec<(String, String)> {
    let bare = |item: &Item| item.as_value().map(|v| v.clone().decorated("", "").to_string());
    let mut all: Vec<_> = rule.iter().map(|(key, item)| (key.to_string(), bare(item).unwrap_or_default())).collect();
    all.sort();
    all
}

/// A rule with what is written at it, that stands wherever it is put.
fn copy(rule: &Table) -> Table {
    let mut copy = Table::new();
    *copy.decor_mut() = rule.decor().clone();
    for (name, item) in rule {
        if let Some(key) = rule.key(name) {
            copy.insert_formatted(key, item.clone());
        }
    }
    copy
}

impl std::fmt::Display for Editor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<Layer> {
        super::parse(text, |e| panic!("{e}"))
    }

    #[test]
    fn reads_every_form() {
        let layer = parse(
            "profile = \"latency\"\nenabled = false # why\nstrict = 1\nspin_us = 10\n\
             port_range_list = \"1-20,23\"\nip_addr_list = [\"10.0.0.0/8\", \"::1\"]\n\
             user_eids = [\"A\"]\n[[rule]]\nuse = \"tcp\"\nuid = 7\nport = 80\n",
        )
        .unwrap();
        let p = layer.values();
        assert!(!p.enabled && p.strict);
        assert_eq!((p.spin_us, p.switch_ops), (10, 4));
        assert_eq!(p.show(Attribute::IpAddrList).to_string(), "10.0.0.0/8,::1");
        assert_eq!(p.show(Attribute::Rules).to_string(), "use=tcp uid=7 port=80");
        assert!(!layer.sets(Attribute::Mode));
    }

    #[test]
    fn mistakes_have_a_line() {
        for (text, message) in [
            ("\nport_range_list = \"9-2\"\n", "line 2: port_range_list: `9-2`: the range runs backwards; write 2-9"),
            ("spin_us = 1.5", "line 1: spin_us cannot have a value of type float"),
            ("profile = \"fast\"", "line 1: no profile `fast`; there are safe, latency, throughput, cpu"),
            ("\n\n[[rule]]\nuse = \"tcp\"\nprot = 1", "line 3: a rule has no `prot`; it has use, program, role, uid, addr, port"),
            ("mode = \"\"\"a\nb\\u001b\"\"\"", "line 1: mode: `a?b?`: write auto, shm, rdma or off"),
            ("rules = \"x\"", "line 1: no attribute `rules`; there are enabled,"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
        let error = parse("enabled = ]").unwrap_err().to_string();
        assert!(error.starts_with("line 1: ") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn comments_at_rules_stay() {
        let text = "# first\n[[rule]]\nuse = \"tcp\" # why\nport = 9\n\n# second\n[[rule]]\n# who\nprogram = \"a*\"\nuse = \"smcr\"\n";
        let (nine, a) = ("use=tcp port=9", "use=smcr program=a*");
        for rules in [format!("{nine}; {a}"), format!("{a}; {nine}"), format!("use=tcp uid=1; {nine}; {a}"), format!("{a}; use=tcp uid=1; {nine}")] {
            let mut editor = Editor::new(text).unwrap();
            editor.set(Attribute::Rules, &rules);
            let new = editor.to_string();
            let sorted = |rules: &str| {
                rules
                    .split("; ")
                    .map(|r| {
                        let mut w: Vec<_> = r.split(' ').collect();
                        w.sort();
                        w.join(" ")
                    })
                    .collect::<Vec<_>>()
            };
            assert_eq!(sorted(&parse(&new).unwrap().values().show(Attribute::Rules).to_string()), sorted(&rules), "{new}");
            for comment in ["# first\n[[rule]]", "# why", "# second\n[[rule]]", "# who"] {
                assert!(new.contains(comment), "{new}");
            }
        }
    }

    #[test]
    fn comments_stay() {
        let mut editor = Editor::new("# mine\nenabled = true # remark\n").unwrap();
        editor.set(Attribute::Enabled, "0");
        editor.set(Attribute::PortRangeList, "1-20");
        editor.set(Attribute::Rules, "use=tcp port=1-2; use=smcr uid=3");
        let text = editor.to_string();
        assert!(text.starts_with("# mine\nenabled = false # remark\n"), "{text}");
        let layer = parse(&text).unwrap();
        assert_eq!(layer.values().show(Attribute::Rules).to_string(), "use=tcp port=1-2; use=smcr uid=3");
        editor.unset(Attribute::Rules);
        assert!(!parse(&editor.to_string()).unwrap().sets(Attribute::Rules));
    }

    #[test]
    fn a_profile_goes_over_the_one_before() {
        let mut editor = Editor::new("# speed\nprofile = \"safe\" # of ours\nspin_us = 9\n").unwrap();
        editor.set_profile(Profile::from_name("cpu").unwrap());
        let text = editor.to_string();
        assert!(text.starts_with("# speed\nprofile = \"cpu\" # of ours\n"), "{text}");
        let layer = parse(&text).unwrap();
        let p = layer.values();
        assert_eq!((p.spin_us, p.max_memory, p.switch_ops), (0, 256, 256));
    }

    #[test]
    fn names_of_digits_stay_names() {
        let mut editor = Editor::new("").unwrap();
        editor.set(Attribute::UserEids, "0123");
        assert_eq!(editor.to_string(), "user_eids = \"0123\"\n");
    }
}
