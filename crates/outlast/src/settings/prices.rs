//! Prices: the built-in table overridden by the user's file, and the prices that a run keeps for its life.

use std::{fs, path::Path};

use outlast_core::{
    engine::run::amend::Amend,
    price::PriceTable,
    run::{PriceFile, Prices, Spec, status::Status},
    store::{Ask as _, Durability, RunView, Store},
};

use crate::{
    cli::shared::ProxyArgs,
    program::{
        error::{CliError, InputError},
        say::say,
    },
};

/// Largest price file that is kept with its run, in bytes. It is read whenever the run is read.
const MAX_KEPT: usize = 256 << 10;

/// Returns the built-in prices, overridden by the file of `--prices` if it is given.
pub fn typed(args: &ProxyArgs) -> Result<PriceTable, CliError> {
    table(file(args)?.as_ref())
}

/// Returns the built-in prices, overridden by the file `path`; `None`: the built-in prices alone.
pub fn of_file(path: Option<&Path>) -> Result<PriceTable, CliError> {
    table(path.map(read).transpose()?.as_ref())
}

/// Returns the prices to store with a new run. Errors: a file that is not understood, or is larger than `MAX_KEPT`.
pub fn to_keep(args: &ProxyArgs) -> Result<Prices, CliError> {
    let file = file(args)?;
    if let Some(file) = file.as_ref().filter(|f| f.text.len() > MAX_KEPT) {
        let (path, had) = (file.path.clone(), file.text.len());
        return Err(InputError::PricesTooLarge { path, had, most: MAX_KEPT }.into());
    }
    Ok(Prices { hash: table(file.as_ref())?.hash().to_owned(), file })
}

/// Returns the prices with which a run continues: `kept`, the prices that it began with, if they were stored. The text
/// is a message for the user: the price file that is named now, or the named file as it is now, differs from the stored
/// prices. `None` if it does not.
pub fn of_run(
    id: &str,
    kept: Option<&Prices>,
    args: &ProxyArgs,
) -> Result<(PriceTable, Option<String>), CliError> {
    let now = file(args)?;
    // Runs begun before prices were kept.
    let Some(kept) = kept else { return Ok((table(now.as_ref())?, None)) };
    let table = table(kept.file.as_ref())?;
    let begun = kept.file.as_ref();
    let now = now.or_else(|| {
        let path = &begun?.path;
        // A file that is gone has not changed: the run needs it no more.
        Some(PriceFile { path: path.clone(), text: fs::read_to_string(path).ok()? })
    });
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

/// Returns the prices stored with a run; the built-in ones for a run of a version that stored none.
pub fn of_view(view: &RunView) -> Result<PriceTable, CliError> {
    table(view.spec.prices.as_ref().and_then(|kept| kept.file.as_ref()))
}

/// Gives a run that was halted for an unknown price the prices of `--prices`, or with `free` counts models
/// without a price as free, and prints a message. Any other run stays unchanged. Returns the run as it is
/// after that.
pub fn mended(store: &dyn Store, view: RunView, args: &ProxyArgs, free: bool) -> Result<RunView, CliError> {
    let unknown = view.run.halt.as_ref().is_some_and(|halt| halt.code == "price_unknown");
    if view.run.status != Status::Halted || !unknown || args.prices.is_none() && !free {
        return Ok(view);
    }
    if free {
        let (run, spec) = (view.run.no, view.spec.clone());
        say(&format!("{} goes on: models without a known price count as free from now on", view.run.id));
        store.ask(Amend { run, spec, free }, Durability::Synced).wait()?;
        return Ok(store.run(run)?.unwrap_or(view));
    }
    let prices = to_keep(args)?;
    if view.spec.prices.as_ref().is_some_and(|kept| kept.hash == prices.hash) {
        return Ok(view);
    }
    let (run, id) = (view.run.no, &view.run.id);
    let path = prices.file.as_ref().map_or("", |file| file.path.as_str());
    let before = match view.spec.prices.as_ref().and_then(|kept| kept.file.as_ref()) {
        Some(file) => format!("those of {}", file.path),
        None => "the built-in ones".to_owned(),
    };
    say(&format!("{id} goes on at the prices of {path}; what it paid so far was priced by {before}"));
    let spec = Spec { prices: Some(prices), ..view.spec.clone() };
    store.ask(Amend { run, spec, free: false }, Durability::Synced).wait()?;
    Ok(store.run(run)?.unwrap_or(view))
}

/// Reads the file of `--prices`; `None` without it.
fn file(args: &ProxyArgs) -> Result<Option<PriceFile>, CliError> {
    args.prices.as_deref().map(read).transpose()
}

fn read(path: &Path) -> Result<PriceFile, CliError> {
    let shown = path.display().to_string();
    let text = fs::read_to_string(path).map_err(|e| bad(&shown, e))?;
    // Absolute, so that it is found again from another directory; as typed if that cannot be told.
    let whole = std::path::absolute(path).unwrap_or_else(|_| Path::new(path).to_owned());
    // A file that is not kept is checked too, and errors show the path that was typed.
    PriceTable::with_overrides(&text).map_err(|e| bad(&shown, e))?;
    Ok(PriceFile { path: whole.display().to_string(), text })
}

fn table(file: Option<&PriceFile>) -> Result<PriceTable, CliError> {
    match file {
        None => Ok(PriceTable::builtin()),
        Some(file) => PriceTable::with_overrides(&file.text).map_err(|e| bad(&file.path, e)),
    }
}

fn bad(path: &str, why: impl ToString) -> CliError {
    InputError::Prices { path: path.to_owned(), why: why.to_string() }.into()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        proxy: ProxyArgs,
    }

    fn args(path: Option<&Path>) -> ProxyArgs {
        let flags = path.into_iter().flat_map(|p| ["--prices".into(), p.as_os_str().to_owned()]);
        Line::parse_from(std::iter::once("x".into()).chain(flags)).proxy
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
            let (table, said) = of_run("r", Some(kept), &args(typed)).unwrap();
            assert_eq!(table.hash(), kept.hash);
            match told {
                None => assert_eq!(said, None),
                Some(told) => assert!(said.as_ref().is_some_and(|s| s.contains(told)), "{said:?}"),
            }
        };
        let kept = to_keep(&args(Some(&first))).unwrap();
        check(&kept, Some(&first), None);
        check(&kept, None, None);
        check(&kept, Some(&other), Some("other.json is not what r began with"));
        let plain = to_keep(&args(None)).unwrap();
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
        let error = to_keep(&args(Some(&path))).unwrap_err();
        assert!(error.to_string().contains("262144 are kept with a run"), "{error}");
        assert!(typed(&args(Some(&path))).is_ok(), "`serve` keeps none");
    }
}
