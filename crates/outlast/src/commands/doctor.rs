//! `outlast doctor`: checks the installation, the settings, the store and the keys, and reports problems.

use std::{
    ffi::OsStr,
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
};

use outlast_core::{run::Instance, words::size};
use outlast_server::{dialect::Upstream, version};
use outlast_store::{
    FORMAT,
    sqlite::{self, SyncMode},
};

use super::prelude::*;
use crate::{
    disk::beside,
    settings::{
        file::{self, SettingsFile},
        keys, no_proxy,
        trust::Trust,
    },
};

/// Check the store, the disk, the keys and the settings
#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {}

/// Free disk space in bytes below which the disk is reported as a problem.
const LITTLE_SPACE: u64 = 256 << 20;

/// Most runs, and most processes, that a finding lists by name.
const NAMED: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Well,
    /// The finding is worth knowing, or something is missing without harm.
    Note,
    Bad,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    told: String,
    hint: Option<String>,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, told: impl Into<String>) -> Finding {
        Finding { what, verdict, told: told.into(), hint: None }
    }

    fn well(what: &'static str, told: impl Into<String>) -> Finding {
        Finding::new(what, Verdict::Well, told)
    }

    /// Returns the finding with what to do about it.
    fn hint(self, hint: impl Into<String>) -> Finding {
        Finding { hint: Some(hint.into()), ..self }
    }

    /// Returns the finding of a check that fails.
    fn failed(what: &'static str, e: &CliError) -> Finding {
        Finding { hint: e.hint(), ..Finding::new(what, Verdict::Bad, e.to_string()) }
    }
}

/// Runs all checks and changes nothing, except that opening a store of an older format migrates it.
///
/// Returns the exit code: `UNAVAILABLE` if a check finds something that is broken.
pub fn doctor(_: &DoctorArgs, context: &Context, page: &mut Page) -> Result<u8> {
    let findings = examine(context);
    let bad = findings.iter().any(|f| f.verdict == Verdict::Bad);
    if page.look.json {
        page.json(&json!({ "well": !bad, "findings": findings }))?;
    } else {
        let mut table = Table::new(["", "", ""]);
        for f in &findings {
            let (sign, paint) = match f.verdict {
                Verdict::Well => ("ok", Paint::Good),
                Verdict::Note => ("note", Paint::Care),
                Verdict::Bad => ("BAD", Paint::Bad),
            };
            table.row(vec![Cell::painted(sign, paint), f.what.into(), Cell::whole(&f.told)]);
            if let Some(hint) = &f.hint {
                table.row(vec![Cell::default(), Cell::default(), Cell::whole(format!("hint: {hint}"))]);
            }
        }
        page.text(table.render(page.look, 0).trim_start_matches('\n'))?;
    }
    Ok(if bad { exit_code::UNAVAILABLE } else { exit_code::OK })
}

fn examine(context: &Context) -> Vec<Finding> {
    let mut findings = vec![Finding::well("outlast", version::line()), others(context), settings(context)];
    findings.extend(store(context));
    findings.extend([api_keys(context).unwrap_or_else(|e| Finding::failed("keys", &e)), proxy(context)]);
    findings
}

/// Compares this program with every other `outlast` on the PATH and in the virtual environment: a binary and a wheel of two
/// builds may read different stores.
fn others(context: &Context) -> Finding {
    let around = &context.around;
    let of_environment = around.var("VIRTUAL_ENV").map(|place| Path::new(place).join("bin/outlast"));
    let found = around.on_path("outlast").chain(of_environment).filter_map(|file| file.canonicalize().ok());
    let own = crate::program().and_then(|file| file.canonicalize()).ok();
    let others: BTreeSet<PathBuf> = found.filter(|file| Some(file) != own.as_ref()).collect();
    let unlike: Vec<String> = others.iter().filter_map(|file| differs(file)).collect();
    match (others.len(), unlike.is_empty()) {
        (0, _) => Finding::well("installed", "no other outlast on the PATH"),
        (_, true) => Finding::well("installed", "each outlast on the PATH is of this build"),
        _ => Finding::new("installed", Verdict::Note, listed(&unlike, unlike.len())).hint(
            "have all of one version, by whatever installed each: an older one refuses a store that a newer one has opened",
        ),
    }
}

/// Names the program with what it says of its version, if it is not what this program says.
fn differs(file: &Path) -> Option<String> {
    let said = Command::new(file).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let said = said.map(|done| String::from_utf8_lossy(&done.stdout).trim().to_owned()).unwrap_or_default();
    let version = said.strip_prefix("outlast ").unwrap_or("of no known version");
    (version != version::line()).then(|| format!("{} is {version}", file.display()))
}

fn settings(context: &Context) -> Finding {
    // A file that exists was already read and validated when the command started.
    let said = |file: SettingsFile| match file.trust {
        Trust::Own | Trust::Given => file.path.display().to_string(),
        Trust::Outdated | Trust::None => format!("{} (not trusted)", file.path.display()),
    };
    let there: Vec<String> = file::files(&context.around).unwrap_or_default().into_iter().map(said).collect();
    let told = if there.is_empty() { "no outlast.toml".to_owned() } else { there.join(", ") };
    Finding::well("settings", told)
}

fn store(context: &Context) -> Vec<Finding> {
    let place = &context.place;
    if let StoreAddress::File(path) = place
        && context.has_no_file()
    {
        let told = format!("none yet at {place}; `outlast run` makes it");
        return [Finding::new("store", Verdict::Note, told)].into_iter().chain(space(path)).collect();
    }
    let mut findings = match context.open(false, Default::default()) {
        Ok(store) => vec![
            Finding::well("store", format!("{place} ({})", engine(place))),
            instances(&*store).unwrap_or_else(|e| Finding::failed("processes", &e)),
            interrupted(&*store).unwrap_or_else(|e| Finding::failed("runs", &e)),
        ],
        Err(e) => vec![Finding::failed("store", &e)],
    };
    if let StoreAddress::File(path) = place {
        findings.extend([permissions(path), sync(path)]);
        findings.extend(space(path));
    }
    findings
}

/// Names the store's engine and format. Opening the store has already migrated an older format.
fn engine(place: &StoreAddress) -> String {
    match place {
        StoreAddress::File(_) => format!("SQLite {}, format {}", sqlite::sqlite_version(), FORMAT),
        StoreAddress::Postgres(_) => "PostgreSQL".into(),
    }
}

fn instances(store: &dyn Store) -> Result<Finding> {
    let (live, now) = (store.live_instances()?, store.now()?);
    if live.is_empty() {
        return Ok(Finding::well("processes", "none at work"));
    }
    let name = |i: &Instance| {
        let (id, age) = (&i.identity, time::age(now.ms_since(i.last_seen)));
        format!("{} (pid {} on {}, seen {age} ago)", id.program, id.pid, id.host)
    };
    let named: Vec<String> = live.iter().take(NAMED).map(name).collect();
    Ok(Finding::well("processes", listed(&named, live.len())))
}

fn interrupted(store: &dyn Store) -> Result<Finding> {
    let limit = 1000;
    let filter = RunFilter { status: Some(Status::Interrupted), limit, ..RunFilter::default() };
    let runs = store.runs(&filter)?;
    if runs.is_empty() {
        return Ok(Finding::well("runs", "none interrupted"));
    }
    let at_least = if runs.len() == limit { "at least " } else { "" };
    let named: Vec<String> = runs.iter().take(NAMED).map(short).collect();
    let told =
        format!("{at_least}{} interrupted: {}", some(runs.len() as i64, "run"), listed(&named, runs.len()));
    // A program with the engine inside is started by whoever started it first.
    let own = runs.iter().filter(|view| view.spec.command.is_none()).count();
    let hint = match own {
        0 => "`outlast resume RUN`, or `outlast resume --all`",
        all if all == runs.len() => "start their programs again: they go on where they were",
        _ => {
            "`outlast resume --all`; those of programs with the engine inside go on when these are started again"
        }
    };
    Ok(Finding::new("runs", Verdict::Note, told).hint(hint))
}

fn listed(named: &[String], count: usize) -> String {
    match count - named.len() {
        0 => named.join(", "),
        more => format!("{}, and {more} more", named.join(", ")),
    }
}

/// Checks that only the owner can read the store's files: they hold prompts and answers.
///
/// Reads metadata only. Opening the SQLite file a second time would drop its locks when that descriptor is closed.
fn permissions(path: &Path) -> Finding {
    let beside = |suffix| beside(path, suffix);
    let mut open: Vec<String> = Vec::new();
    for file in [path.to_owned(), beside("-wal"), beside("-shm"), beside("-mark")] {
        if let Ok(meta) = std::fs::metadata(&file)
            && meta.mode() & 0o077 != 0
        {
            open.push(format!("{:04o} {}", meta.mode() & 0o7777, file.display()));
        }
    }
    if open.is_empty() {
        return Finding::well("permissions", "only yours to read");
    }
    let told = format!("others can read what agents said: {}", open.join(", "));
    Finding::new("permissions", Verdict::Bad, told).hint(format!("chmod 600 {}*", path.display()))
}

/// Reports how a synced commit reaches the disk.
fn sync(path: &Path) -> Finding {
    match SyncMode::at(path) {
        SyncMode::WriteThrough { file_system } => Finding::well(
            "sync",
            format!("commits are written through with RWF_DSYNC, which {file_system} honours"),
        ),
        SyncMode::WriteThenSync { file_system, magic, why } => {
            let file_system =
                file_system.map_or_else(|| format!("a file system of type {magic:#x}"), str::to_owned);
            let told = format!("a sync of the log follows each commit on {file_system}: {why}");
            Finding::new("sync", Verdict::Note, told)
        }
    }
}

fn space(path: &Path) -> Option<Finding> {
    // Measured at the nearest directory that exists: the store's own may not be made yet.
    let directory = path.ancestors().skip(1).find(|d| d.is_dir())?;
    let disk = rustix::fs::statvfs(directory).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    // Rounded to whole GiB from 10 GiB on, to whole MiB below.
    let shift = if free >> 30 >= 10 { 30 } else { 20 };
    let told = format!("{} free in {}", size::format_bytes(free >> shift << shift), directory.display());
    let verdict = if free < LITTLE_SPACE { Verdict::Bad } else { Verdict::Well };
    Some(Finding::new("disk", verdict, told))
}

/// Checks that a program's calls to a URL on loopback go there.
fn proxy(context: &Context) -> Finding {
    let variable = |name: &str| context.around.var(name).map(OsStr::to_owned);
    match no_proxy::leads_away(variable) {
        None => Finding::well("loopback", "reached without a proxy"),
        Some(name) => {
            let told = format!(
                "{name} is set and NO_PROXY leaves loopback out: what calls `outlast serve` sends its token to that proxy"
            );
            let value = no_proxy::list(variable, |_| true);
            let hint =
                format!("export NO_PROXY={value} no_proxy={value}; `outlast run` sets it for what it starts");
            Finding::new("loopback", Verdict::Note, told).hint(hint)
        }
    }
}

fn api_keys(context: &Context) -> Result<Finding> {
    let found = context.keys()?;
    let told = |name: &str, key: Option<&keys::Key>| match key.map(|k| &k.origin) {
        Some(keys::Origin::Environment) => format!("{name} from the environment"),
        Some(keys::Origin::File(path)) => format!("{name} from {}", path.display()),
        None => format!("no {name}"),
    };
    let all = Upstream::ALL.map(|upstream| (keys::variable(upstream), found.of(upstream)));
    let verdict = if all.iter().all(|(_, key)| key.is_none()) { Verdict::Note } else { Verdict::Well };
    Ok(Finding::new("keys", verdict, all.map(|(name, key)| told(name, key)).join(", ")))
}
