//! Files that `outlast run` keeps, and to which of them `outlast resume` goes back.

use clap::Args;
use outlast_core::run::KeptFiles;

use super::values;

/// Files that are kept with a run.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "Files (of a new run, for its whole life)")]
pub struct KeepArgs {
    /// Keep the files of this directory as each tool leaves them: a directory [default: that in which the command runs], `off`, or `auto`: of a known CLI agent, where that costs nothing to notice. Without it `auto` in a working tree of git, `off` elsewhere
    #[arg(long, value_name = "DIR|auto|off", num_args = 0..=1, require_equals = true, default_missing_value = ".")]
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
    /// Returns whether the tree and the command decide if files are kept.
    pub fn is_auto(&self) -> bool {
        self.files.as_deref().is_none_or(|word| word == "auto")
    }

    /// Returns what is kept with the run; `None`: no files, or the tree decides.
    pub fn kept(&self) -> Option<KeptFiles> {
        let directory = self.files.as_deref().filter(|word| *word != "off" && !self.is_auto())?;
        Some(self.of(directory))
    }

    /// Returns how a directory is kept; `.` is the one in which the command runs.
    pub fn of(&self, directory: &str) -> KeptFiles {
        KeptFiles {
            directory: (directory != ".").then(|| directory.to_owned()),
            ignored: self.files_ignored,
            exclude: self.files_exclude.clone(),
            max_bytes: self.files_max,
        }
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

/// Paths that are restored against a refusal.
#[derive(Args, Clone, Debug, Default)]
pub struct ForceArgs {
    /// A path that is brought back although somebody else changed it, with all below it; HEAD: although HEAD has moved; can be repeated
    #[arg(long, value_name = "PATH")]
    pub force: Vec<String>,
}
