//! Changing attributes: enable, disable, set, unset, port-range, rule, ueid. Each change goes into
//! the configuration file (unless `--runtime`) and, live, into the control page.

use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use smcr_proto::control::list::{Ports, Rules as RuleList};
use smcr_proto::control::{Attribute, Drains, Layer, Mode, Page, Policy, Profile};

use crate::cli::{PortRange, Rules, Scope, SetArgs, Ueid, UnsetArgs, Whose};
use crate::config::{self, Editor};
use crate::effective::Effective;
use crate::fail::usage;
use crate::handshake;
use crate::out;
use crate::paths::{self, Owner, Places};
use crate::ports;
use crate::store::{Lock, Store, replace_config};

/// One change of one attribute.
pub enum Change {
    Set(Attribute, String),
    Unset(Attribute),
    Profile(&'static Profile),
}

/// The settings of one owner, held against other writers.
pub struct Settings {
    owner: Owner,
    runtime: bool,
    file: PathBuf,
    store: Store,
    lock: Lock,
}

impl Settings {
    pub fn open(places: &Places, scope: impl Into<Scope>) -> anyhow::Result<Settings> {
        let scope = scope.into();
        let owner = Owner::chosen(scope.whose)?;
        if owner == Owner::User
            && let Some(dir) = paths::anothers_runtime()
        {
            bail!("XDG_RUNTIME_DIR is {}, which belongs to another user; unset it, or leave out --user", dir.display());
        }
        let store = Store::new(places.control(owner)?, owner);
        let lock = store.lock()?;
        Ok(Settings { owner, runtime: scope.runtime, file: places.config(owner)?, store, lock })
    }

    /// The eBPF programs follow the host's `enabled`, where that is set.
    pub fn pin(&self, places: &Places) -> anyhow::Result<()> {
        // Below --root is the image of another machine, whose kernel is not this one.
        if self.owner != Owner::Host || places.is_elsewhere() {
            return Ok(());
        }
        let layer = self.layer()?;
        if layer.sets(Attribute::Enabled) {
            handshake::switch(layer.values().enabled)?;
        }
        Ok(())
    }

    /// What the page says now, or would say once it is made.
    pub fn layer(&self) -> anyhow::Result<Layer> {
        match self.store.read()? {
            Some(page) => Ok(page.layer),
            None => self.load(),
        }
    }

    /// A list that a command adds to or takes from. It is written into the page and into the file as a whole, so where they
    /// differ (after `--runtime`, or an edit by hand) one would go over the other: nothing is changed then. A user's first one begins
    /// with the host's, which `list` has shown.
    fn list<T: PartialEq>(&self, places: &Places, of: Attribute, get: impl Fn(&Policy) -> T) -> anyhow::Result<T> {
        let layer = self.layer()?;
        let list = get(layer.values());
        if !self.runtime && get(config::load(&self.file, drop)?.values()) != list {
            bail!(
                "{} is another list in {} than the one that holds; smcrctl config apply loads the file's, --runtime changes the \
                 other one alone",
                of.name(),
                self.file.display()
            );
        }
        if self.owner == Owner::User && !layer.sets(of) {
            let host = Effective::read(places).host;
            if host.sets(of) {
                out::note(&format!("note: the user's {} begins with the host's, which it hides from now on", of.name()));
                return Ok(get(host.values()));
            }
        }
        Ok(list)
    }

    /// Makes the changes, in the file first: if it cannot be written, nothing is changed.
    pub fn apply(&self, changes: &[Change]) -> anyhow::Result<()> {
        let first = || {
            let layer = self.load()?;
            Ok(Page { layer, drains: Drains::default() })
        };
        self.store.update(&self.lock, first, |page| {
            for change in changes {
                change.make(&mut page.layer)?;
            }
            if self.runtime {
                return Ok(());
            }
            self.edit_file(changes)
        })
    }

    /// What the file says, to be put into the page.
    fn load(&self) -> anyhow::Result<Layer> {
        config::load(&self.file, |absent| out::note(&format!("note: {absent}")))
    }

    /// Makes the page say what the file says.
    pub fn load_file(&self) -> anyhow::Result<()> {
        let layer = self.load()?;
        self.store.update(
            &self.lock,
            || Ok(Page::default()),
            |page| {
                page.layer = layer;
                Ok(())
            },
        )
    }

    /// Adds a request to the page.
    pub fn drain(&self, target: smcr_proto::control::Target) -> anyhow::Result<()> {
        let first = || {
            let layer = self.load()?;
            Ok(Page { layer, drains: Drains::default() })
        };
        self.store.update(&self.lock, first, |page| {
            page.drains.push(target);
            Ok(())
        })
    }

    fn edit_file(&self, changes: &[Change]) -> anyhow::Result<()> {
        let text = match std::fs::read_to_string(&self.file) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e).context(format!("cannot read {}", self.file.display())),
        };
        let named = |e| anyhow!("{}: {e}", self.file.display());
        config::parse(&text, drop).map_err(named)?;
        let mut editor = Editor::new(&text).map_err(named)?;
        for change in changes {
            match change {
                Change::Set(attribute, text) => editor.set(*attribute, text),
                Change::Unset(attribute) => {
                    editor.expand_profile();
                    editor.unset(*attribute);
                }
                Change::Profile(profile) => editor.set_profile(profile),
            }
        }
        let new = editor.to_string();
        config::parse(&new, drop).map_err(named)?;
        if new == text {
            return Ok(());
        }
        replace_config(&self.file, &new)
    }

    /// Says if a stronger layer hides what was just set.
    pub fn warn_if_hidden(&self, places: &Places, attribute: Attribute) {
        let effective = Effective::read(places);
        let (origin, place) = effective.origin(attribute, places);
        if origin == "environment" || (self.owner == Owner::Host && origin == "user") {
            out::note(&format!("note: for programs started here, {} is set by {place}, which is stronger", attribute.name()));
        }
    }
}

impl Change {
    fn make(&self, layer: &mut Layer) -> anyhow::Result<()> {
        match self {
            Change::Set(attribute, text) => config::set(layer, *attribute, text).map_err(|e| usage(format!("{}: {e:#}", attribute.name()))),
            Change::Unset(attribute) => {
                layer.unset(*attribute);
                Ok(())
            }
            Change::Profile(profile) => {
                profile.apply(layer);
                Ok(())
            }
        }
    }
}

pub fn enable(places: &Places, scope: Scope, on: bool) -> anyhow::Result<()> {
    let settings = Settings::open(places, scope)?;
    let value = if on { "1" } else { "0" };
    settings.apply(&[Change::Set(Attribute::Enabled, value.into())])?;
    settings.warn_if_hidden(places, Attribute::Enabled);
    if on && settings.layer()?.values().mode == Mode::Off {
        out::note("note: mode is off, which keeps connections on TCP as well; smcrctl set mode=auto");
    }
    let owner = settings.owner.word();
    if on {
        out::print(&format!("enabled for the {owner}, for new connections\n"))?;
    } else {
        out::print(&format!("disabled for the {owner}, for new connections; smcrctl drain moves the live ones to TCP\n"))?;
    }
    settings.pin(places)
}

pub fn set(places: &Places, args: &SetArgs) -> anyhow::Result<()> {
    let mut changes = Vec::new();
    for (name, value) in pairs(&args.values)? {
        if name == "profile" {
            let profile = Profile::from_name(value);
            let profile = profile.ok_or_else(|| usage(config::unknown_profile(value)))?;
            changes.push(Change::Profile(profile));
        } else {
            changes.push(Change::Set(attribute(name)?, value.to_string()));
        }
    }
    // A mistake is one of the call, whatever the state of the pages.
    changes.iter().try_for_each(|c| c.make(&mut Layer::default()))?;
    let settings = Settings::open(places, args.scope)?;
    settings.apply(&changes)?;
    for change in &changes {
        if let Change::Set(attribute, _) = change {
            settings.warn_if_hidden(places, *attribute);
        }
    }
    match changes.iter().any(|c| matches!(c, Change::Set(Attribute::Enabled, _))) {
        true => settings.pin(places),
        false => Ok(()),
    }
}

/// Names and values: any number of NAME=VALUE, or one NAME VALUE, as after `ip link set`.
fn pairs(words: &[String]) -> anyhow::Result<Vec<(&str, &str)>> {
    if let [name, value] = words
        && Attribute::from_name(name).is_some()
        && (name == Attribute::Rules.name() || !value.contains('='))
    {
        return Ok(vec![(name, value)]);
    }
    let wrong = |word: &str| usage(format!("`{word}`: write ATTRIBUTE=VALUE"));
    words.iter().map(|word| word.split_once('=').ok_or_else(|| wrong(word))).collect()
}

pub fn unset(places: &Places, args: &UnsetArgs) -> anyhow::Result<()> {
    let attributes: Result<Vec<_>, _> = args.attributes.iter().map(|n| attribute(n)).collect();
    let changes: Vec<_> = attributes?.into_iter().map(Change::Unset).collect();
    Settings::open(places, args.scope)?.apply(&changes)
}

/// The attribute with this name, or the mistake.
pub fn attribute(name: &str) -> anyhow::Result<Attribute> {
    Attribute::from_name(name).ok_or_else(|| usage(config::unknown_attribute(name)))
}

pub fn port_range(places: &Places, command: &PortRange) -> anyhow::Result<()> {
    let name = Attribute::PortRangeList;
    let (ports, scope, change): (_, _, fn(&Ports, &str) -> anyhow::Result<Ports>) = match command {
        PortRange::List { whose } => {
            let layer = shown_layer(places, *whose)?;
            let lines = layer.ports.iter().map(|r| format!("{r}\n"));
            return out::print(&lines.collect::<String>());
        }
        PortRange::Add { ports, scope } => (ports, *scope, ports::add),
        PortRange::Del { ports, scope } => (ports, *scope, ports::del),
    };
    let settings = Settings::open(places, scope)?;
    let old = settings.list(places, name, |p| p.ports)?;
    let values = Policy { ports: change(&old, ports)?, ..Policy::default() };
    settings.apply(&[Change::Set(name, values.show(name).to_string())])?;
    if old.is_empty() {
        out::note(&format!("note: the list was empty, which means every port; now it is {} only", values.show(name)));
    }
    settings.warn_if_hidden(places, name);
    Ok(())
}

pub fn rule(places: &Places, command: &Rules) -> anyhow::Result<()> {
    let name = Attribute::Rules;
    let scope = match command {
        Rules::List { whose } => {
            let layer = shown_layer(places, *whose)?;
            let lines = layer.rules.iter().enumerate();
            let text: String = lines.map(|(i, r)| format!("{}\t{r}\n", i + 1)).collect();
            return out::print(&text);
        }
        Rules::Add { scope, .. } | Rules::Del { scope, .. } => *scope,
    };
    let settings = Settings::open(places, scope)?;
    let old: RuleList = settings.list(places, name, |p| p.rules)?;
    let mut rules: Vec<String> = old.iter().map(ToString::to_string).collect();
    match command {
        Rules::Add { words, at, .. } => add_rule(&mut rules, &words.join(" "), *at)?,
        Rules::Del { number, .. } => del_rule(&mut rules, *number)?,
        Rules::List { .. } => {}
    }
    settings.apply(&[Change::Set(name, rules.join("; "))])?;
    settings.warn_if_hidden(places, name);
    Ok(())
}

fn add_rule(rules: &mut Vec<String>, text: &str, at: Option<usize>) -> anyhow::Result<()> {
    smcr_proto::control::text::rule(text).map_err(|e| usage(e.to_string()))?;
    let at = at.unwrap_or(rules.len() + 1);
    if at == 0 || at > rules.len() + 1 {
        return Err(usage(format!("--at {at}: a place from 1 to {}", rules.len() + 1)));
    }
    rules.insert(at - 1, text.to_string());
    Ok(())
}

fn del_rule(rules: &mut Vec<String>, number: usize) -> anyhow::Result<()> {
    if number == 0 || number > rules.len() {
        let have = rules.len();
        return Err(usage(format!("no rule {number}; there are {have}, see smcrctl rule list")));
    }
    rules.remove(number - 1);
    Ok(())
}

pub fn ueid(places: &Places, command: &Ueid) -> anyhow::Result<()> {
    let name = Attribute::UserEids;
    let scope = match command {
        Ueid::Show { whose } => {
            let layer = shown_layer(places, *whose)?;
            let lines = layer.ueids.iter().map(|e| format!("{e}\n"));
            return out::print(&lines.collect::<String>());
        }
        Ueid::Add { scope, .. } | Ueid::Del { scope, .. } | Ueid::Flush { scope } => *scope,
    };
    let settings = Settings::open(places, scope)?;
    let old = || settings.list(places, name, |p| p.ueids.iter().map(ToString::to_string).collect::<Vec<_>>());
    let mut eids = Vec::new();
    match command {
        Ueid::Add { eid, .. } => {
            eids = old()?;
            eids.push(eid.clone());
        }
        Ueid::Del { eid, .. } => {
            eids = old()?;
            let before = eids.len();
            eids.retain(|e| e != eid);
            if eids.len() == before {
                return Err(usage(format!("no user EID `{eid}`; see smcrctl ueid show")));
            }
        }
        _ => {}
    }
    settings.apply(&[Change::Set(name, eids.join(","))])?;
    settings.warn_if_hidden(places, name);
    Ok(())
}

/// The policy that a list command shows: of one owner if asked, else what holds.
fn shown_layer(places: &Places, whose: Whose) -> anyhow::Result<Policy> {
    if whose.host || whose.user {
        // To look at the host's settings takes no privilege.
        let owner = if whose.host { Owner::Host } else { Owner::User };
        let page = Store::new(places.control(owner)?, owner).read()?;
        return Ok(*page.unwrap_or_default().layer.values());
    }
    Ok(Effective::read(places).policy)
}
