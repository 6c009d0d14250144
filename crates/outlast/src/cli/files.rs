//! The commands of files that are kept with a run: `files`, `undo`; and what `outlast run` keeps.

use clap::{Args, Subcommand};
use outlast_core::run::KeptFiles;

use super::values;

/// Files that are kept with a run.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Files (of a new run, for its whole life)")]
pub struct KeepArgs {
    /// Keep the files of this directory as each tool leaves them: `off`, or a directory [default: that in which the command runs]. Without it no files are kept
    #[arg(long, value_name = "DIR|off", num_args = 0..=1, require_equals = true, default_missing_value = ".")]
    pub files: Option<String>,
    /// Keep files too that .gitignore names
    #[arg(long)]
    pub files_ignored: bool,
    /// Files that are not kept, in the syntax of .gitignore, beside those that usually hold secrets (.env, keys); `!NAME` keeps one of these; can be repeated
    #[arg(long, value_name = "PATTERN")]
    pub files_exclude: Vec<String>,
    /// Most room that the files of all runs of the store may take; a snapshot beyond it is not taken, and the run goes on [default: 10GiB]
    #[arg(long, value_name = "SIZE", value_parser = values::bytes)]
    pub files_max: Option<u64>,
}

impl KeepArgs {
    /// Returns what is kept with the run; `None`: no files.
    pub fn kept(&self) -> Option<KeptFiles> {
        let directory = self.files.as_deref().filter(|word| *word != "off")?;
        Some(KeptFiles {
            directory: (directory != ".").then(|| directory.to_owned()),
            ignored: self.files_ignored,
            exclude: self.files_exclude.clone(),
            max_bytes: self.files_max,
        })
    }
}

/// Files with which a run is resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResumeAt {
    /// Nothing is touched.
    #[default]
    AsDied,
    /// As the last finished tool left them.
    LastTool,
    /// As they were when an entry began.
    Entry(i64),
}

impl std::str::FromStr for ResumeAt {
    type Err = String;

    fn from_str(word: &str) -> Result<ResumeAt, String> {
        match word {
            "as-died" => Ok(ResumeAt::AsDied),
            "last-tool" => Ok(ResumeAt::LastTool),
            entry => entry
                .parse()
                .map(ResumeAt::Entry)
                .map_err(|_| "wanted as-died, last-tool, or an entry's number".into()),
        }
    }
}

/// Show what a run changed in its files, and bring files back
///
/// For runs that were begun with `outlast run --files`. A snapshot belongs to the entry beside which it was taken: the
/// files are as the tools before that entry left them.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_value_name = "diff|show|restore")]
pub struct FilesArgs {
    /// The run: its id, its name, or the start of its id
    #[arg(value_name = "RUN")]
    pub run: Option<String>,
    #[command(subcommand)]
    pub verb: Option<FilesVerb>,
}

const EXAMPLES: &str = "\
Examples:
  outlast files nightly                       what changed, entry by entry
  outlast files diff nightly 12               what changed from entry 12 on
  outlast files show nightly src/main.rs@12   a file as it was then
  outlast files restore nightly src/main.rs --at 12
  outlast undo nightly --to 12                all files";

#[derive(Subcommand, Clone, Debug)]
pub enum FilesVerb {
    Diff(FilesDiffArgs),
    Show(FilesShowArgs),
    Restore(FilesRestoreArgs),
}

/// Print the differences between two entries of a run
#[derive(Args, Clone, Debug)]
pub struct FilesDiffArgs {
    /// The run: its id, its name, or the start of its id
    #[arg(value_name = "RUN")]
    pub run: String,
    /// The entry from which on [default: the run's beginning]
    #[arg(value_name = "FROM")]
    pub from: Option<i64>,
    /// The entry up to which [default: the newest snapshot]
    #[arg(value_name = "TO")]
    pub to: Option<i64>,
}

/// Print a file as it was at an entry of a run
#[derive(Args, Clone, Debug)]
pub struct FilesShowArgs {
    /// The run: its id, its name, or the start of its id
    #[arg(value_name = "RUN")]
    pub run: String,
    /// The file, below the directory that is kept; without @ENTRY as the newest snapshot has it
    #[arg(value_name = "PATH[@ENTRY]")]
    pub path: String,
}

/// Bring some files back, as they were at an entry of a run
///
/// What is there now is kept first.
#[derive(Args, Clone, Debug)]
pub struct FilesRestoreArgs {
    /// The run: its id, its name, or the start of its id
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Files and directories, below the directory that is kept
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<String>,
    /// The entry [default: the run's beginning]
    #[arg(long, value_name = "ENTRY")]
    pub at: Option<i64>,
    #[command(flatten)]
    pub force: ForceArgs,
}

/// Bring a run's files back, as they were before the run, or at one of its entries
///
/// What is there now is kept first. Only what the run's snapshots say differs is touched, path by path: no file that no
/// snapshot holds, nothing of a repository. Refused, with the list, where somebody else changed a file since. The run's
/// journal, its conversation and its money stay as they are.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast undo nightly\n  outlast undo nightly --to 12\n  outlast undo nightly --to saved    takes the last undo back"
)]
pub struct UndoArgs {
    /// The run: its id, its name, or the start of its id
    #[arg(value_name = "RUN")]
    pub run: String,
    /// The entry, as of whose beginning files come back; saved: as they were before the last undo [default: the run's beginning]
    #[arg(long, value_name = "ENTRY|saved")]
    pub to: Option<UndoTo>,
    #[command(flatten)]
    pub force: ForceArgs,
}

/// Files that come back by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoTo {
    /// As they were before the run.
    Beginning,
    /// As they were when an entry began.
    Entry(i64),
    /// As they were before the last restoration by hand.
    Saved,
}

impl std::str::FromStr for UndoTo {
    type Err = String;

    fn from_str(word: &str) -> Result<UndoTo, String> {
        match word {
            "saved" => Ok(UndoTo::Saved),
            entry => {
                entry.parse().map(UndoTo::Entry).map_err(|_| "wanted an entry's number, or saved".into())
            }
        }
    }
}

/// Paths that are restored against a refusal.
#[derive(Args, Clone, Debug, Default)]
pub struct ForceArgs {
    /// A path that is brought back although somebody else changed it, with all below it; HEAD: although HEAD has moved; can be repeated
    #[arg(long, value_name = "PATH")]
    pub force: Vec<String>,
}
