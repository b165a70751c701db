//! What holds for the programs of this user: the layers, their order, and the policy they make.
//! Used by get, config show, explain and check.

use smcr_proto::control::{self, Attribute, Layer, Policy};

use crate::out;
use crate::paths::{Owner, Places};
use crate::store::Store;

/// The layers of this user, the strongest first.
pub struct Effective {
    pub environment: Layer,
    pub user: Layer,
    pub host: Layer,
    pub policy: Policy,
}

impl Effective {
    /// Reads the environment and both pages. What cannot be read is told and counts as empty, as
    /// it does for the library.
    pub fn read(places: &Places) -> Effective {
        let environment = environment();
        let user = page(places, Owner::User);
        let host = page(places, Owner::Host);
        let policy = control::resolve(&[&environment, &user, &host]);
        Effective { environment, user, host, policy }
    }

    /// Where a value comes from: a word, and the file or variable.
    pub fn origin(&self, attribute: Attribute, places: &Places) -> (&'static str, String) {
        let layers = [&self.environment, &self.user, &self.host];
        let file = |owner| places.control(owner).map_or(String::new(), |path| path.display().to_string());
        match control::origin(attribute, &layers) {
            Some(0) => ("environment", attribute.environment().unwrap_or_default().to_string()),
            Some(1) => ("user", file(Owner::User)),
            Some(_) => ("host", file(Owner::Host)),
            None => ("default", String::new()),
        }
    }
}

fn environment() -> Layer {
    let variables: Vec<(&str, String)> =
        Attribute::ALL.iter().filter_map(|a| a.environment()).filter_map(|name| Some((name, std::env::var(name).ok()?))).collect();
    control::text::environment(
        |name| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, text)| text.as_str())
        },
        |name, error| out::note(&format!("smcrctl: {name} is ignored: {error}")),
    )
}

fn page(places: &Places, owner: Owner) -> Layer {
    let read = places.control(owner).and_then(|path| Store::new(path, owner).read());
    match read {
        Ok(page) => page.unwrap_or_default().layer,
        Err(error) => {
            out::note(&format!("smcrctl: {error:#}"));
            Layer::default()
        }
    }
}
