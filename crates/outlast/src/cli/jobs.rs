//! The commands for batch jobs and for the store: `jobs`, `inspect`, `retry`, `export`, `gc`, `verify`, `repair`,
//! `migrate`.

use std::path::PathBuf;

use clap::Args;

use super::values;

/// List batch jobs, newest first
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast jobs\n  outlast jobs --store runs/docs.jsonl.outlast.db\n  outlast jobs --json | jq '.jobs[].job.failed'"
)]
pub struct JobsArgs {
    /// Largest number of jobs to list
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: usize,
}

/// Tell how far a job is: done, failed, dead, gaps, attempts, cost and time
///
/// A JSONL file of results is read with the store beside it, FILE.outlast.db. A file that another program wrote has no
/// such store: its lines alone are counted.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast inspect enrich-docs\n  outlast inspect runs/enrich-docs.jsonl --gaps\n  outlast inspect enrich-docs --attempts --json"
)]
pub struct InspectArgs {
    /// The job: its name, its run's id or the start of it; or a JSONL file of results
    #[arg(value_name = "JOB|FILE.jsonl")]
    pub job: String,
    /// Each input without a result, by its place in the input, below the highest place that has one
    #[arg(long)]
    pub gaps: bool,
    /// Each attempt of the job, and how far it got
    #[arg(long)]
    pub attempts: bool,
}

/// Make items of a job pending again; its script runs them
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast retry enrich-docs --failed\n  outlast retry enrich-docs --key doc-17 --key doc-18\n  outlast retry enrich-docs --failed --reuse-answers"
)]
pub struct RetryArgs {
    /// The job: its name, its run's id or the start of it; or a JSONL file of results
    #[arg(value_name = "JOB|FILE.jsonl")]
    pub job: String,
    /// Items that failed, and items that are dead: given up after repeated failures
    #[arg(long)]
    pub failed: bool,
    /// The item of this key, a finished one too; can be repeated
    #[arg(long, value_name = "KEY")]
    pub key: Vec<String>,
    /// Replay the answers that were paid for, to repaired code
    #[arg(long)]
    pub reuse_answers: bool,
}

/// Print the results of a batch's items, one line of JSON for each item; or a run's conversations
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast export enrich-docs > results.jsonl\n  outlast export runs/enrich-docs.jsonl | jq .value\n  outlast export nightly --transcript > nightly.md"
)]
pub struct ExportArgs {
    /// The batch: its name, its run's id, or the start of that id; or a JSONL file of results. With --transcript, any run
    #[arg(value_name = "JOB|FILE.jsonl")]
    pub job: String,
    /// The conversations of a run as Markdown, or with --json as JSON
    #[arg(long)]
    pub transcript: bool,
}

/// Delete a run that has ended, with its child runs and all their stored data; or all runs with a tag
///
/// What they have cost stays in `outlast spend`, by day, upstream and model. The newest run of a store is refused until
/// another one has begun.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast rm nightly\n  outlast cancel nightly && outlast rm nightly\n  outlast rm --tag customer=acme"
)]
pub struct RmArgs {
    /// The run: its id, its name, or the start of its id
    #[arg(value_name = "RUN", required_unless_present = "tag")]
    pub run: Option<String>,
    /// All runs with this tag
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::tag, conflicts_with = "run")]
    pub tag: Option<(String, String)>,
}

/// Delete runs that ended long ago, with all that was kept of them
///
/// Completed, failed and cancelled runs are deleted; never one that is interrupted, halted or waiting. A run is also kept
/// while one of its child runs or forks is kept, or while its parent is kept.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  outlast gc --older-than 30d --dry-run\n  outlast gc --older-than 12h")]
pub struct GcArgs {
    /// Delete the runs that ended longer ago than this
    #[arg(long = "older-than", value_name = "TIME", value_parser = values::ms)]
    pub older_than_ms: i64,
    /// Only list the runs that would be deleted
    #[arg(long)]
    pub dry_run: bool,
}

/// Check the store, or a JSONL file, for damage
///
/// The database's own check, every stored value against its checksum, and the sums of every budget and job against
/// their entries. Damage is told and never covered up: exit code 1.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast verify\n  outlast verify --repair\n  outlast verify runs/enrich-docs.jsonl --repair"
)]
pub struct VerifyArgs {
    /// A JSONL file of results, in place of the store
    #[arg(value_name = "FILE.jsonl")]
    pub file: Option<String>,
    /// Make anew what can be told from the rest: indexes, a job's counts. Of a JSONL file, damaged lines are moved to FILE.damaged
    #[arg(long)]
    pub repair: bool,
}

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

/// Give the point where a run is now a name, to fork it from there
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  outlast snapshot research-42 before-the-draft")]
pub struct SnapshotArgs {
    /// The run or job: its id, its name, or the start of its id; or a JSONL file of results
    #[arg(value_name = "RUN|FILE.jsonl")]
    pub run: String,
    /// The snapshot's name, of A-Z a-z 0-9 . _ -; used again, it means the new point
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Create a run that continues from an earlier point of another run
///
/// The work that the other run had done by then is shared: it is neither copied nor paid again. The fork is its child: what the fork spends
/// counts against the other's limits, too. Start it with outlast resume.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast fork research-42 --from-snapshot before-the-draft\n  outlast fork enrich-docs --from-snapshot 2 --id enrich-again\n  outlast fork nightly --from-snapshot 2026-11-20T08:00:00Z\n  outlast fork nightly --at 12 --into ../nightly-again"
)]
pub struct ForkArgs {
    /// The run or job: its id, its name, or the start of its id; or a JSONL file of results
    #[arg(value_name = "RUN|JOB|FILE.jsonl")]
    pub run: String,
    /// Point to continue from: a snapshot's name, an attempt's number (its end is used), or a time
    #[arg(long, value_name = "NAME|ATTEMPT|TIME", required_unless_present = "at")]
    pub from_snapshot: Option<String>,
    /// Entry to continue from: it is the last one that is shared
    #[arg(long, value_name = "ENTRY", conflicts_with = "from_snapshot")]
    pub at: Option<i64>,
    /// Directory that the fork works in, with the run's files as they were when the entry began; it is made, or is empty. For runs of `outlast run --files`
    #[arg(long, value_name = "DIR", requires = "at")]
    pub into: Option<PathBuf>,
    /// The fork's id; by default built from the other run's id and the point
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Limit in dollars for the fork alone; the other run's limit still holds
    #[arg(long, value_name = "AMOUNT", value_parser = values::usd)]
    pub usd: Option<i64>,
}
