//! Attributes, and the sources that set them.
//!
//! A [`Layer`] is one source (environment, user's page, host's page) and sets some attributes; [`resolve`]
//! makes one [`Policy`] of all of them.

use super::policy::Policy;

macro_rules! attributes {
    ($($(#[$doc:meta])* $variant:ident $field:ident = $bit:literal, $name:literal, $env:expr, $help:literal;)*) => {
        /// An attribute; the number is its bit in the page.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub enum Attribute { $($(#[$doc])* $variant = $bit,)* }

        impl Attribute {
            /// Every attribute, in the order of the numbers.
            pub const ALL: &'static [Attribute] = &[$(Attribute::$variant,)*];

            /// The name that users write.
            pub const fn name(self) -> &'static str {
                match self { $(Attribute::$variant => $name,)* }
            }

            /// The environment variable that sets it for one program.
            pub const fn environment(self) -> Option<&'static str> {
                match self { $(Attribute::$variant => $env,)* }
            }

            /// Form and meaning in one line.
            pub const fn help(self) -> &'static str {
                match self { $(Attribute::$variant => $help,)* }
            }
        }

        impl Policy {
            /// Takes one attribute from another policy.
            pub fn take(&mut self, attribute: Attribute, from: &Policy) {
                match attribute { $(Attribute::$variant => self.$field = from.$field,)* }
            }
        }
    };
}

attributes! {
    /// [`Policy::enabled`]
    Enabled enabled = 0, "enabled", Some("SMCR_ENABLE"), "0|1: acceleration of new connections";
    /// [`Policy::mode`]
    Mode mode = 1, "mode", Some("SMCR_MODE"), "auto|shm|rdma|off: media that may be used";
    /// [`Policy::strict`]
    Strict strict = 2, "strict", Some("SMCR_STRICT"), "0|1: reset a connection that should have left TCP and did not";
    /// [`Policy::spin_us`]
    SpinUs spin_us = 3, "spin_us", Some("SMCR_SPIN_US"), "0-100000: microseconds of polling before a sleep";
    /// [`Policy::max_memory`]
    MaxMemory max_memory = 4, "max_memory", Some("SMCR_MAX_MEMORY"), "0-1048576: MiB of rings per process; then TCP";
    /// [`Policy::switch_ops`]
    SwitchOps switch_ops = 5, "switch_ops", Some("SMCR_SWITCH_OPS"), "0-1000000: sends and receives before a switch";
    /// [`Policy::switch_bytes`]
    SwitchBytes switch_bytes = 6, "switch_bytes", Some("SMCR_SWITCH_BYTES"), "0-1099511627776: bytes before a switch";
    /// [`Policy::ports`]
    PortRangeList ports = 7, "port_range_list", Some("SMCR_PORTS"), "1-20,23,50: ports of services; empty or all = every port";
    /// [`Policy::addrs`]
    IpAddrList addrs = 8, "ip_addr_list", Some("SMCR_ADDRS"), "10.0.0.0/8,fe80::1: local or peer addresses; empty or all = every address";
    /// [`Policy::rules`]
    Rules rules = 9, "rules", None, "use=smcr|tcp [program=GLOB] [role=client|server] [uid=N] [addr=PREFIX] [port=RANGE]; ...";
    /// [`Policy::ueids`]
    UserEids ueids = 10, "user_eids", None, "EID,EID: user EIDs, up to 8 of 32 characters";
    /// [`Policy::peer_uid`]
    PeerUid peer_uid = 11, "peer_uid", None, "any|same|anyone|UID: users whose processes may share memory with ours";
}

impl Attribute {
    /// The attribute with this name.
    pub fn from_name(name: &str) -> Option<Attribute> {
        Attribute::ALL.iter().copied().find(|a| a.name() == name)
    }

    const fn bit(self) -> u64 {
        1 << (self as u32)
    }
}

/// One source of attributes: the values, and which of them it sets.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Layer {
    set: u64,
    values: Policy,
}

impl Layer {
    /// True if this layer sets the attribute.
    pub const fn sets(&self, attribute: Attribute) -> bool {
        self.set & attribute.bit() != 0
    }

    /// True if this layer sets nothing.
    pub const fn is_empty(&self) -> bool {
        self.set == 0
    }

    /// The values; those that are not set mean nothing.
    pub const fn values(&self) -> &Policy {
        &self.values
    }

    /// Sets one attribute to what it is in `from`.
    pub fn set(&mut self, attribute: Attribute, from: &Policy) {
        self.values.take(attribute, from);
        self.set |= attribute.bit();
    }

    /// Leaves the attribute to the layers below.
    pub fn unset(&mut self, attribute: Attribute) {
        self.values.take(attribute, &Policy::default());
        self.set &= !attribute.bit();
    }

    /// The bits of the attributes that are set, as in the page.
    pub(super) const fn bits(&self) -> u64 {
        self.set
    }

    /// Both parts, to be filled in place from a page.
    pub(super) const fn parts(&mut self) -> (&mut u64, &mut Policy) {
        (&mut self.set, &mut self.values)
    }
}

/// One policy out of layers, the strongest first: environment, user, host.
pub fn resolve(layers: &[&Layer]) -> Policy {
    let mut policy = Policy::default();
    resolve_into(layers, &mut policy);
    policy
}

/// As [`resolve`], for callers whose stack may be small. `policy` must be the default before.
pub fn resolve_into(layers: &[&Layer], policy: &mut Policy) {
    for attribute in Attribute::ALL {
        if let Some(layer) = origin(*attribute, layers).and_then(|i| layers.get(i)) {
            policy.take(*attribute, layer.values());
        }
    }
}

/// Index of the layer that an attribute comes from; none = it is the default.
pub fn origin(attribute: Attribute, layers: &[&Layer]) -> Option<usize> {
    layers.iter().position(|layer| layer.sets(attribute))
}

#[cfg(test)]
mod tests {
    use super::super::policy::Mode;
    use super::super::tests::with;
    use super::*;

    #[test]
    fn the_stronger_layer_wins() {
        let (mut env, mut user, mut host) = (Layer::default(), Layer::default(), Layer::default());
        host.set(Attribute::Enabled, &with(&[(Attribute::Enabled, "0")]));
        host.set(Attribute::SpinUs, &with(&[(Attribute::SpinUs, "7")]));
        user.set(Attribute::Enabled, &with(&[(Attribute::Enabled, "1")]));
        env.set(Attribute::Mode, &with(&[(Attribute::Mode, "shm")]));
        let layers = [&env, &user, &host];
        let policy = resolve(&layers);
        assert!(policy.enabled);
        assert_eq!((policy.spin_us, policy.mode), (7, Mode::Shm));
        assert_eq!(origin(Attribute::Enabled, &layers), Some(1));
        assert_eq!(origin(Attribute::Strict, &layers), None);
        user.unset(Attribute::Enabled);
        assert!(!resolve(&[&env, &user, &host]).enabled);
    }
}
