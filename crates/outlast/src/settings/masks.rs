//! `[digest]` of `outlast.toml`: parts of a request that do not count in the digest by which replay finds it.
//!
//! The directory's file takes precedence over the user's, as a whole. The masks are kept with each new run.

use outlast_core::run::Masks;

use crate::settings::{
    file::{self, Error},
    surroundings::Surroundings,
};

/// Name of the table of masks in `outlast.toml`.
pub const TABLE: &str = "digest";

/// Returns the checked masks for new runs; `None` if none are configured.
pub fn load(around: &Surroundings) -> Result<Option<Masks>, Error> {
    let Some((path, table)) = file::nearest_table(around, TABLE)? else { return Ok(None) };
    let bad = |key: String, why: String| Error::bad(&path, key, why);
    let masks: Masks = file::read_as(toml::Value::Table(table)).map_err(|why| bad(TABLE.into(), why))?;
    masks.compile().map_err(|e| bad(format!("{TABLE}.{}", e.at), e.why))?;
    Ok((!masks.is_empty()).then_some(masks))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::settings::trust;

    fn load_texts(local: &str, own: &str) -> Result<Option<Masks>, String> {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("here");
        let theirs = home.path().join(".config/outlast");
        for (at, text) in [(&directory, local), (&theirs, own)] {
            fs::create_dir_all(at).unwrap();
            fs::write(at.join("outlast.toml"), text).unwrap();
        }
        let around = Surroundings::new(&[("HOME", home.path().to_str().unwrap())], &directory);
        trust::give(&around, &directory.join("outlast.toml"), local).unwrap();
        load(&around).map_err(|e| e.to_string())
    }

    const DAY: &str = "[digest]\nleave_out = [\"/seed\"]\n[digest.masks]\nday = '\\d{4}-\\d\\d-\\d\\d'\n";

    #[test]
    fn the_nearest_file_that_has_masks_counts() {
        assert_eq!(load_texts("", ""), Ok(None));
        assert_eq!(load_texts("[digest]", ""), Ok(None));
        for (local, own) in [(DAY, ""), ("", DAY), (DAY, "[digest]\nleave_out = [\"/x\"]")] {
            let masks = load_texts(local, own).unwrap().unwrap();
            assert_eq!((masks.leave_out.as_slice(), masks.masks.len()), (&["/seed".to_owned()][..], 1));
        }
    }

    #[test]
    fn a_wrong_mask_is_told_by_its_name_and_place() {
        for (text, key, why) in [
            ("[digest.masks]\nday = \"(a\"", "`digest.masks.day`", "unclosed group"),
            ("[digest]\nleave_out = [\"seed\"]", "`digest.leave_out`", "not a JSON pointer: \"seed\""),
            ("[digest]\nleaveout = []", "`digest`", "unknown field `leaveout`"),
            ("[digest.masks]\nday = 7", "`digest`", "invalid type"),
            ("digest = 1", "`digest`", "wanted a table"),
        ] {
            let error = load_texts(text, "").unwrap_err();
            assert!(error.contains(key) && error.contains(why) && error.contains("outlast.toml"), "{error}");
        }
    }
}
