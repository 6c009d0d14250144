//! Prices: the built-in table overridden by the user's file, and the prices that a run keeps for its life.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use outlast_core::{
    price::PriceTable,
    run::{PriceFile, Prices},
    store::RunView,
};
use serde_json::value::RawValue;

use crate::{disk, settings::surroundings::Surroundings};

/// Largest price file that is kept with its run, in bytes. It is read whenever the run is read.
const MAX_KEPT: usize = 256 << 10;

/// Name of the file of newer prices that a person has taken with `outlast prices update`, beside their own `outlast.toml`.
const OWN: &str = "prices.json";

/// Error of a file of prices that is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the price file {path}: {why}")]
    Unread { path: String, why: String },
    #[error("the price file {path}: it has {had} bytes, and up to {most} are kept with a run")]
    TooLarge { path: String, had: usize, most: usize },
}

impl Error {
    /// Returns the hint that is printed below the error: what to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Unread { .. } => "its fields are those of docs/guides/prices.md",
            Error::TooLarge { .. } => "leave in it the models that the agent uses",
        }
    }
}

/// Returns the built-in prices, overridden by the person's newer ones and by the file `path`, if `--prices` names one.
pub fn of_file(path: Option<&Path>, around: &Surroundings) -> Result<PriceTable, Error> {
    table(layers(path, around)?.as_ref())
}

/// Returns the prices to store with a new run. Errors: a file that is not understood, or is larger than `MAX_KEPT`.
pub fn to_keep(path: Option<&Path>, around: &Surroundings) -> Result<Prices, Error> {
    kept(layers(path, around)?)
}

fn kept(file: Option<PriceFile>) -> Result<Prices, Error> {
    if let Some(file) = &file {
        fits(&file.path, &file.text)?;
    }
    Ok(Prices { hash: table(file.as_ref())?.hash().to_owned(), file })
}

fn fits(path: &str, text: &str) -> Result<(), Error> {
    match text.len() > MAX_KEPT {
        true => Err(Error::TooLarge { path: path.into(), had: text.len(), most: MAX_KEPT }),
        false => Ok(()),
    }
}

/// Returns the path of the person's newer prices; `None` if they have no directory of settings.
pub fn own_path(around: &Surroundings) -> Option<PathBuf> {
    Some(around.config_directory()?.join(OWN))
}

/// Keeps newer prices, which come from `source`, for new runs, at `path`, which is [`own_path`].
///
/// Errors: prices that are larger than what is kept with a run; the file cannot be written.
pub fn keep_own(text: &str, source: &str, path: &Path) -> Result<(), Error> {
    fits(source, text)?;
    disk::write(path, text.as_bytes()).map_err(|e| bad(&path.display().to_string(), e))
}

/// Returns the prices with which a run continues: `kept`, the prices that it began with, if they were stored. The text
/// is a message for the user: the price file that is named now, or the named file as it is now, differs from the stored
/// prices. `None` if it does not.
pub fn of_run(
    id: &str,
    kept: Option<&Prices>,
    path: Option<&Path>,
    around: &Surroundings,
) -> Result<(PriceTable, Option<String>), Error> {
    // Runs begun before prices were kept.
    let Some(kept) = kept else { return Ok((of_file(path, around)?, None)) };
    let table = table(kept.file.as_ref())?;
    let begun = kept.file.as_ref();
    let now = match (path, begun) {
        (Some(path), _) => layers(Some(path), around)?,
        // A file that is gone has not changed: the run needs it no more.
        (None, Some(begun)) => layers(Some(Path::new(&begun.path)), around).unwrap_or_default(),
        (None, None) => layers(None, around)?,
    };
    let said = match &now {
        Some(now) if begun.is_none_or(|b| b.text != now.text) => Some(format!(
            "{} is not what {id} began with: its prices stay as they were (a new run takes the file)",
            now.path
        )),
        _ if table.hash() != kept.hash => Some(format!(
            "the built-in prices have changed with the version of outlast since {id} began: those of now count"
        )),
        _ => None,
    };
    Ok((table, said))
}

/// Returns the prices that are stored with a new run.
pub fn of_kept(prices: &Prices) -> Result<PriceTable, Error> {
    table(prices.file.as_ref())
}

/// Returns the prices stored with a run; the built-in ones for a run of a version that stored none.
pub fn of_view(view: &RunView) -> Result<PriceTable, Error> {
    table(view.spec.prices.as_ref().and_then(|kept| kept.file.as_ref()))
}

/// Reads the person's newer prices, with the models of the file `path` over them; `None` if there are neither.
fn layers(path: Option<&Path>, around: &Surroundings) -> Result<Option<PriceFile>, Error> {
    let own = own_path(around).filter(|own| own.exists());
    let Some(path) = path else { return own.map(|own| read(&own)).transpose() };
    let file = read(path)?;
    // A run that began with the newer prices alone has kept their path.
    let Some(own) = own.filter(|own| *own != *path) else { return Ok(Some(file)) };
    let all = read(&own)?;
    let entries = |text: &str| serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(text);
    let merged = entries(&all.text).and_then(|mut merged| {
        merged.extend(entries(&file.text)?);
        serde_json::to_string(&merged)
    });
    let text = merged.map_err(|e| bad(&file.path, e))?;
    Ok(Some(PriceFile { text, ..file }))
}

fn read(path: &Path) -> Result<PriceFile, Error> {
    let shown = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|e| bad(&shown, e))?;
    // Absolute, so that it is found again from another directory; as typed if that cannot be told.
    let whole = std::path::absolute(path).unwrap_or_else(|_| Path::new(path).to_owned());
    // A file that is not kept is checked too, and errors show the path that was typed.
    PriceTable::with_overrides(&text).map_err(|e| bad(&shown, e))?;
    Ok(PriceFile { path: whole.display().to_string(), text })
}

fn table(file: Option<&PriceFile>) -> Result<PriceTable, Error> {
    match file {
        None => Ok(PriceTable::builtin()),
        Some(file) => PriceTable::with_overrides(&file.text).map_err(|e| bad(&file.path, e)),
    }
}

fn bad(path: &str, why: impl ToString) -> Error {
    Error::Unread { path: path.to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use outlast_core::words::ServiceTier;

    use super::*;

    fn around(home: &tempfile::TempDir) -> Surroundings {
        Surroundings::new(&[("HOME", home.path().to_str().unwrap())], home.path())
    }

    fn prices(usd_per_token: &str) -> String {
        format!(r#"{{"m": {{"input_cost_per_token": {usd_per_token}, "output_cost_per_token": 1e-6}}}}"#)
    }

    #[test]
    fn a_run_goes_on_at_the_prices_it_began_with_and_says_when_others_were_typed() {
        let dir = tempfile::tempdir().unwrap();
        let (first, other) = (dir.path().join("first.json"), dir.path().join("other.json"));
        fs::write(&first, prices("1e-6")).unwrap();
        fs::write(&other, prices("2e-6")).unwrap();
        let check = |kept: &Prices, typed: Option<&Path>, told: Option<&str>| {
            let (table, said) = of_run("r", Some(kept), typed, &around(&dir)).unwrap();
            assert_eq!(table.hash(), kept.hash);
            match told {
                None => assert_eq!(said, None),
                Some(told) => assert!(said.as_ref().is_some_and(|s| s.contains(told)), "{said:?}"),
            }
        };
        let kept = to_keep(Some(&first), &around(&dir)).unwrap();
        check(&kept, Some(&first), None);
        check(&kept, None, None);
        check(&kept, Some(&other), Some("other.json is not what r began with"));
        let plain = to_keep(None, &around(&dir)).unwrap();
        check(&plain, None, None);
        check(&plain, Some(&other), Some("other.json is not what r began with"));
        fs::write(&first, prices("3e-6")).unwrap();
        check(&kept, None, Some("first.json is not what r began with"));
        check(&kept, Some(&first), Some("first.json is not what r began with"));
        fs::remove_file(&first).unwrap();
        check(&kept, None, None);
    }

    #[test]
    fn a_file_that_is_too_large_to_be_kept_makes_no_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large.json");
        fs::write(&path, format!("{}{}", prices("1e-6"), " ".repeat(MAX_KEPT))).unwrap();
        let error = to_keep(Some(&path), &around(&dir)).unwrap_err();
        assert!(error.to_string().contains("262144 are kept with a run"), "{error}");
        assert!(of_file(Some(&path), &around(&dir)).is_ok(), "`serve` keeps none");
    }

    #[test]
    fn newer_prices_count_for_new_runs_and_a_named_file_over_them() {
        let home = tempfile::tempdir().unwrap();
        let around = around(&home);
        let file = home.path().join("mine.json");
        fs::write(&file, prices("7e-6")).unwrap();
        let input = |kept: &Prices, model: &str| {
            let found = table(kept.file.as_ref()).unwrap().lookup(model)?;
            Some(found.price.rates(ServiceTier::Standard, 0).input.0)
        };
        let before = to_keep(None, &around).unwrap();
        assert_eq!((&before.file, input(&before, "m")), (&None, None));
        let newer = r#"{"m": {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6},
            "new": {"input_cost_per_token": 2e-6, "output_cost_per_token": 1e-6}}"#;
        let path = own_path(&around).unwrap();
        keep_own(newer, "newer.json", &path).unwrap();
        let plain = to_keep(None, &around).unwrap();
        assert_eq!(plain.file.as_ref().map(|file| Path::new(&file.path)), Some(path.as_path()));
        assert_eq!((input(&plain, "m"), input(&plain, "new")), (Some(1_000_000), Some(2_000_000)));
        let named = to_keep(Some(&file), &around).unwrap();
        assert_eq!((input(&named, "m"), input(&named, "new")), (Some(7_000_000), Some(2_000_000)));
        for (kept, told) in [(&before, true), (&plain, false), (&named, false)] {
            let (_, said) = of_run("r", Some(kept), None, &around).unwrap();
            assert_eq!(said.is_some(), told, "{said:?}");
        }
        let large = format!("{newer}{}", " ".repeat(MAX_KEPT));
        assert!(keep_own(&large, "large.json", &path).is_err());
        assert_eq!(fs::read_to_string(path).unwrap(), newer);
    }
}
