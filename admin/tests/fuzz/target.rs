//! What the fuzzers call with the text of a configuration file. Used by the bounded run beside this file and by
//! `fuzz/fuzz_targets/config_file.rs`, which have `config` and `interfaces` beside it too.

use smcr_proto::control::{self, Attribute, LEN, Layer, PROFILES, Page};

use super::config::{self, Editor};

/// A file is refused in one line, or sets what a page can hold, and what is edited in it is read back.
pub fn config_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let layer = match config::parse(text, drop) {
        Ok(layer) => layer,
        Err(error) => {
            let said = error.to_string();
            assert!(!said.is_empty() && !said.contains('\n'), "{said:?}");
            return;
        }
    };
    survives_in_a_page(&layer);
    let editor = || Editor::new(text).expect("what is read can be edited");
    assert_eq!(read(&editor()), layer, "written unchanged");
    let mut expanded = editor();
    expanded.expand_profile();
    assert_eq!(read(&expanded), layer, "the profile expanded");
    for attribute in Attribute::ALL {
        let mut without = editor();
        without.expand_profile();
        without.unset(*attribute);
        let mut expected = layer;
        expected.unset(*attribute);
        assert_eq!(read(&without), expected, "without {attribute:?}");
        if layer.sets(*attribute) {
            let mut again = editor();
            again.set(*attribute, &layer.values().show(*attribute).to_string());
            assert_eq!(read(&again), layer, "{attribute:?} set again");
        }
    }
    for profile in PROFILES {
        let mut with = editor();
        with.set_profile(profile);
        let found = read(&with);
        let mut expected = found;
        profile.apply(&mut expected);
        assert_eq!(found, expected, "profile {}", profile.name);
    }
}

/// What an edited file sets; it must be readable, since smcrctl would refuse to write it otherwise.
fn read(editor: &Editor) -> Layer {
    let text = editor.to_string();
    config::parse(&text, drop).unwrap_or_else(|e| panic!("{e}: {text:?}"))
}

fn survives_in_a_page(layer: &Layer) {
    let page = Page { layer: *layer, ..Page::default() };
    let mut image = [0; LEN];
    control::emit(&page, &mut image);
    assert_eq!(control::parse(&image), Ok(page));
}
