//! `outlast repair`: says what a damaged log lacks, and goes on with what is left. `outlast migrate`: brings a store to
//! this version's format.

use std::time::UNIX_EPOCH;

use outlast_store::{
    FORMAT,
    sqlite::{self, KeptPart, Repaired},
};

use super::prelude::*;

/// Make a store usable again whose write-ahead log has lost commits
///
/// A store whose write-ahead log (STORE-wal) was cut, deleted, damaged or replaced by an older copy is refused by every
/// command. Without --accept-shorter, this reports what is missing and what is
/// left, changes nothing, and exits with code 1.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  outlast repair runs.db\n  outlast repair runs.db --accept-shorter")]
pub struct RepairArgs {
    /// The store's file [default: the store of --store]
    #[arg(value_name = "STORE")]
    pub place: Option<String>,
    /// Give up the missing commits and make the store usable; a copy of the damaged log is kept beside it
    #[arg(long)]
    pub accept_shorter: bool,
}

/// Make the store, or bring it to this version's format
///
/// Every command does so with the store that it opens. In PostgreSQL only the owner of the tables may: let the owner type
/// this before servers of a new version start as another role. While processes of a version before use a store of an
/// older format, it is left alone, and they are named.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  outlast --store postgres://owner@db.example/agents migrate")]
pub struct MigrateArgs {}

/// Prints what a store has lost, or accepts that (`--accept-shorter`). Returns `REFUSED` if the store is still damaged.
pub fn repair(args: &RepairArgs, context: &Context, page: &mut Page) -> Result<u8> {
    let place = match &args.place {
        Some(place) => StoreAddress::decide(Some(place), &context.around)?,
        None => context.place.clone(),
    };
    let context = Context { place, ..context.clone() };
    let place = context.place.to_string();
    let StoreAddress::File(path) = &context.place else {
        let message = format!("{place} keeps its own log: only the file of a SQLite store is repaired");
        return Err(CliError::usage(message, None));
    };
    if context.has_no_file() {
        return Err(CliError::NoStore { place });
    }
    let found = sqlite::repair(path, args.accept_shorter)?;
    // What is left is looked through like any store.
    let damage = match &found {
        Some(_) if !args.accept_shorter => Vec::new(),
        _ => context.open(false, Default::default())?.damage(false)?,
    };
    let is_refused = !damage.is_empty() || (found.is_some() && !args.accept_shorter);
    if page.look.json {
        page.json(&json!({
            "place": place,
            "missing": found.as_ref().map(|found| &found.missing),
            "newest_commit": found.as_ref().and_then(newest),
            "left": found.as_ref().map(left),
            "accepted": found.is_some() && args.accept_shorter,
            "kept": found.as_ref().and_then(|found| found.kept.as_ref()),
            "damage": damage,
        }))?;
    } else {
        match &found {
            Some(found) => tell(found, &place, args.accept_shorter, page)?,
            None => page.line(&format!("{place}: nothing is missing"))?,
        }
        for line in damage {
            page.line(&format!("damaged: {line}"))?;
        }
    }
    Ok(if is_refused { exit_code::REFUSED } else { exit_code::OK })
}

fn tell(found: &Repaired, place: &str, accepted: bool, page: &mut Page) -> Result {
    let missing = match newest(found) {
        Some(at) => format!("{} (the newest commit was made at {at})", found.missing),
        None => found.missing.clone(),
    };
    page.line(&format!("{}: {missing}", if accepted { "given up" } else { "missing" }))?;
    page.line(&format!("left: {}", left(found)))?;
    if let Some(kept) = &found.kept {
        page.line(&format!("the log as it was found: {}", kept.display()))?;
    }
    if accepted {
        page.line("what a provider billed for what is missing is not in the store; `outlast verify` checks the rest")?;
    } else {
        page.line(&format!("hint: `outlast repair {place} --accept-shorter` goes on with what is left"))?;
    }
    Ok(())
}

fn newest(found: &Repaired) -> Option<String> {
    let since = found.newest?.duration_since(UNIX_EPOCH).ok()?;
    Some(time::moment(Micros(i64::try_from(since.as_micros()).ok()?)))
}

fn left(found: &Repaired) -> String {
    match found.rest {
        KeptPart::Everything => "the file, which has everything that was committed".into(),
        KeptPart::Before { byte } => format!("the file, and the log's commits up to byte {byte}"),
        KeptPart::File => "the file, as the last checkpoint left it".into(),
    }
}

/// Opens the store, which makes or migrates it, and prints its format.
///
/// Errors: a store of another program, a newer one, and one of an older format that a process still uses.
pub fn migrate(_: &MigrateArgs, context: &Context, page: &mut Page) -> Result {
    drop(context.open(true, Default::default())?);
    let place = context.place.to_string();
    if page.look.json {
        return Ok(page.json(&json!({ "place": place, "format": FORMAT }))?);
    }
    Ok(page.line(&format!("{place} has format {FORMAT}, as this outlast writes it"))?)
}
