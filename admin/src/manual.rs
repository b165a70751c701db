//! The manual pages beside those of the commands: smcr(7), the library and what the environment says to it, and smcr.toml(5),
//! the settings, from the table of attributes. Called by `generate`.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use smcr_proto::control::{Attribute, PROFILES, Policy};

use crate::config::RULE_WORDS;

/// What the environment alone sets: name, form, meaning.
const OF_THE_ENVIRONMENT: [(&str, &str, &str); 4] = [
    (
        "SMCR_LOG",
        "LEVEL[,TARGET=LEVEL]...",
        "What is told: off, error, warn, info, debug or trace, in all or by target (smcr::switch=debug). Nothing without it.",
    ),
    ("SMCR_LOG_FILE", "PATH", "Where to, appended; standard error without it."),
    ("SMCR_RING", "BYTES", "Size of a new ring, 4096 to 262144, up to the next power of two; without it 262144 in memory and 65536 over RDMA."),
    ("SMCR_FLIP", "MEAN_BYTES,SEED", "For tests: connections move between memory and TCP at random bytes."),
];

/// Name and section, as in the name of the file, and the text.
pub fn pages() -> [(&'static str, String); 2] {
    [("smcr.7", library()), ("smcr.toml.5", settings())]
}

fn library() -> String {
    let mut page = begun("smcr", "7", "makes unmodified TCP programs faster");
    section(&mut page, "SYNOPSIS");
    page.text([bold("LD_PRELOAD=libsmcr.so "), italic("program"), roman(" ...")]);
    page.control("br", []);
    page.text([bold("smcrctl run "), italic("program"), roman(" ...")]);
    section(&mut page, "DESCRIPTION");
    text(
        &mut page,
        "libsmcr.so takes the place of the C library's socket calls in a program that is linked dynamically. Once it is proved that the process at the other \
         end of a TCP connection has the library too, the payload leaves TCP: it goes through memory that both processes share on one host, or by RDMA (SMC-R \
         version 2.1) between hosts, also to a Linux kernel's AF_SMC. The TCP connection stays beside it. Everything else, and every peer without the library, \
         stays plain TCP.",
    );
    text(
        &mut page,
        "Nothing has to be configured, no daemon runs, and no privilege is needed on one host. Between hosts smcrctl enable, as root, pins the eBPF programs of \
         the SMC option once. Programs that are static, set-user-ID or 32-bit run as without it; one for musl does not start with it.",
    );
    section(&mut page, "ENVIRONMENT");
    text(&mut page, "The first have the attributes of the settings that stand in brackets, and are stronger:");
    for attribute in Attribute::ALL {
        if let Some(name) = attribute.environment() {
            item(&mut page, [bold(name), roman(format!(" ({})", attribute.name()))], &format!("{}.", attribute.help()));
        }
    }
    text(&mut page, "These stand in the environment alone:");
    for (name, form, meaning) in OF_THE_ENVIRONMENT {
        item(&mut page, [bold(name), roman("="), italic(form)], meaning);
    }
    section(&mut page, "FILES");
    item(
        &mut page,
        [italic("/etc/smcr/smcr.toml")],
        "The host's settings, see smcr.toml(5). A user's are smcr/smcr.toml in $XDG_CONFIG_HOME or ~/.config.",
    );
    item(
        &mut page,
        [italic("/run/smcr/control")],
        "The page in which running processes see them. A user's is smcr/control in $XDG_RUNTIME_DIR, or in ~/.local/state.",
    );
    section(&mut page, "DIAGNOSTICS");
    text(
        &mut page,
        "smcrctl sock lists connections with the reason why one is on TCP, smcrctl explain says what to change, smcrctl check tries this machine.",
    );
    see_also(&mut page, &["smcrctl(1)", "smcr.toml(5)", "ld.so(8)", "tcp(7)"]);
    page.to_roff()
}

fn settings() -> String {
    let mut page = begun("smcr.toml", "5", "settings of smcr");
    section(&mut page, "DESCRIPTION");
    text(
        &mut page,
        "/etc/smcr/smcr.toml has the settings of the host, smcr/smcr.toml in $XDG_CONFIG_HOME or ~/.config those of a user. The environment is stronger than the \
         user's settings, those than the host's, those than the defaults. smcrctl set changes the file and, at once, what running processes see. After an edit by \
         hand: smcrctl config check, then smcrctl config apply. The form is TOML; a list may be an array, or a string with commas.",
    );
    section(&mut page, "ATTRIBUTES");
    let defaults = Policy::default();
    for attribute in Attribute::ALL {
        if *attribute == Attribute::Rules {
            continue;
        }
        let default = match defaults.show(*attribute).to_string() {
            empty if empty.is_empty() => "empty".to_string(),
            value => value,
        };
        item(&mut page, [bold(attribute.name())], &format!("{}. Default: {default}.", attribute.help()));
    }
    item(&mut page, [bold("profile")], "Values for a purpose; what the file names beside it is stronger:");
    page.control("RS", []);
    for profile in PROFILES {
        item(&mut page, [bold(profile.name)], &format!("{}.", profile.help));
    }
    page.control("RE", []);
    section(&mut page, "RULES");
    let words = RULE_WORDS.join(", ");
    text(
        &mut page,
        &format!(
            "Each table [[rule]] is one rule; its keys are {words}. They are asked in order, before the lists, and the first that agrees with a connection decides: \
             use = \"smcr\" allows it whatever the lists say, use = \"tcp\" keeps it on TCP."
        ),
    );
    section(&mut page, "EXAMPLE");
    page.control("EX", []);
    for line in ["enabled = true", "port_range_list = \"6379,8000-8099\"", "", "[[rule]]", "use = \"tcp\"", "program = \"backup*\""] {
        page.text([roman(line)]);
    }
    page.control("EE", []);
    see_also(&mut page, &["smcr(7)", "smcrctl-set(1)", "smcrctl-config(1)"]);
    page.to_roff()
}

/// A page with its NAME.
fn begun(name: &str, number: &str, what: &str) -> Roff {
    let mut page = Roff::new();
    page.control("TH", [name, number, "", concat!("smcr ", env!("CARGO_PKG_VERSION")), ""]);
    section(&mut page, "NAME");
    page.text([roman(name), roman(" - "), roman(what)]);
    page
}

fn section(page: &mut Roff, name: &str) {
    page.control("SH", [name]);
}

fn text(page: &mut Roff, text: &str) {
    page.control("PP", []);
    page.text([roman(text)]);
}

/// A name, and what it means.
fn item<const N: usize>(page: &mut Roff, name: [Inline; N], meaning: &str) {
    page.control("TP", []);
    page.text(name);
    page.text([roman(meaning)]);
}

fn see_also(page: &mut Roff, pages: &[&str]) {
    section(page, "SEE ALSO");
    page.text([roman(pages.join(", "))]);
}
