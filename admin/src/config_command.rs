//! The commands get and config: what holds, where it comes from, and mistakes in files.

use anyhow::{Context, bail};
use smcr_proto::control::{Attribute, Policy};

use crate::cli::{Config, GetArgs, Whose};
use crate::effective::Effective;
use crate::fail::Silent;
use crate::out::{self, Table};
use crate::paths::{Owner, Places};
use crate::settings::{Settings, attribute};
use crate::{config, store};

pub fn get(places: &Places, args: &GetArgs) -> anyhow::Result<()> {
    let named: Result<Vec<_>, _> = args.attributes.iter().map(|n| attribute(n)).collect();
    let mut named = named?;
    if named.is_empty() {
        named = Attribute::ALL.to_vec();
    }
    if args.describe {
        let mut table = Table::new(&["Attribute", "Default", "Meaning"]);
        for a in named {
            let default = Policy::default().show(a).to_string();
            table.row(vec![a.name().into(), default, a.help().into()]);
        }
        return out::print(&table.render());
    }
    let policy = Effective::read(places).policy;
    let line = |a: &Attribute| match args.values {
        true => format!("{}\n", policy.show(*a)),
        false => format!("{} = {}\n", a.name(), policy.show(*a)),
    };
    out::print(&named.iter().map(line).collect::<String>())
}

pub fn config(places: &Places, command: &Config) -> anyhow::Result<()> {
    match command {
        Config::Show { origin, json } => show(places, *origin, *json),
        Config::Check { file } => check(places, file.as_deref()),
        Config::Apply { whose } => apply(places, *whose),
    }
}

fn show(places: &Places, with_origin: bool, json: bool) -> anyhow::Result<()> {
    let effective = Effective::read(places);
    if json {
        let mut object = serde_json::Map::new();
        for a in Attribute::ALL {
            let (origin, place) = effective.origin(*a, places);
            let value = effective.policy.show(*a).to_string();
            object.insert(a.name().into(), serde_json::json!({ "value": value, "origin": origin, "place": place }));
        }
        return out::json(&object);
    }
    if !with_origin {
        let line = |a: &Attribute| format!("{} = {}\n", a.name(), effective.policy.show(*a));
        return out::print(&Attribute::ALL.iter().map(line).collect::<String>());
    }
    let mut table = Table::new(&["Attribute", "Value", "Origin", "Place"]);
    for a in Attribute::ALL {
        let (origin, place) = effective.origin(*a, places);
        let value = effective.policy.show(*a).to_string();
        table.row(vec![a.name().into(), value, origin.into(), place]);
    }
    out::print(&table.render())
}

/// Reads every source, tells each mistake, and fails if there is one.
fn check(places: &Places, file: Option<&std::path::Path>) -> anyhow::Result<()> {
    if let Some(file) = file {
        // An absent file is right as a place that sets nothing, but not when it is named.
        std::fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
        if let Some(absent) = absent(file)? {
            bail!("{absent}");
        }
        return out::print(&format!("{}: correct\n", file.display()));
    }
    let mut mistakes = Vec::new();
    let mut text = String::new();
    for owner in [Owner::User, Owner::Host] {
        let (path, page) = match (places.config(owner), places.control(owner)) {
            (Ok(path), Ok(page)) => (path, page),
            // A service, for which only the host's settings hold.
            (Err(error), _) | (_, Err(error)) => {
                out::note(&format!("note: the settings of the {} are left out: {error:#}", owner.word()));
                continue;
            }
        };
        let there = path.exists();
        match absent(&path) {
            Ok(Some(absent)) => mistakes.push(absent),
            Ok(_) if there => text += &format!("{}: correct\n", path.display()),
            Ok(_) => text += &format!("{}: not there\n", path.display()),
            Err(error) => mistakes.push(format!("{error:#}")),
        }
        match store::Store::new(page.clone(), owner).read() {
            Ok(Some(_)) => text += &format!("{}: correct\n", page.display()),
            Ok(None) => text += &format!("{}: not there\n", page.display()),
            Err(error) => mistakes.push(format!("{error:#}")),
        }
    }
    for a in Attribute::ALL {
        let Some(name) = a.environment() else {
            continue;
        };
        let Ok(value) = std::env::var(name) else {
            continue;
        };
        if let Err(error) = Policy::default().parse(*a, &value) {
            mistakes.push(format!("{name}: {error}"));
        }
    }
    out::print(&text)?;
    if mistakes.is_empty() {
        return Ok(());
    }
    mistakes.iter().for_each(|m| out::note(&format!("smcrctl: {m}")));
    Err(Silent.into())
}

/// The first interface in a file that has no address; an error if something else is wrong with it.
fn absent(file: &std::path::Path) -> anyhow::Result<Option<String>> {
    let mut first = None;
    config::load(file, |line| {
        first.get_or_insert(line);
    })?;
    Ok(first)
}

fn apply(places: &Places, whose: Whose) -> anyhow::Result<()> {
    let settings = Settings::open(places, whose)?;
    settings.load_file()?;
    settings.pin(places)
}
