//! Marks by which a run's processes are known.

use outlast_core::{
    run::token::TokenKey,
    store::RunView,
    words::{AttemptNo, Digest},
};
use outlast_process::tree::Marker;

use crate::program::told;

/// Beginning of the names of all attempts' control groups.
pub const GROUPS: &str = "outlast-run-";

/// Mark of a run, in the environment of every process of its agents. Unique to this run in this store.
pub struct Mark {
    pub run: String,
    pub mark: String,
}

impl Mark {
    /// Derives the mark of a run from its number and the store's secret. The secret is needed because run ids that
    /// callers choose repeat between stores.
    pub fn new(view: &RunView, keys: &[TokenKey]) -> Mark {
        let mut bytes = keys.last().map_or_else(Vec::new, |k| k.secret.to_vec());
        bytes.extend(view.run.no.0.to_le_bytes());
        Mark { run: view.run.id.to_string(), mark: Digest::of(&bytes).to_string()[..16].to_owned() }
    }

    /// Returns the common prefix of the names of the control groups of this run's attempts.
    pub fn group(&self) -> String {
        format!("{GROUPS}{}-", self.mark)
    }

    pub fn marker(&self) -> Marker {
        Marker::new([(told::RUN_ID, self.run.as_str()), (told::MARK, self.mark.as_str())])
    }

    /// Returns the environment variables that mark the processes of one attempt alone.
    pub fn marker_of(&self, attempt: AttemptNo) -> Marker {
        let attempt = attempt.to_string();
        Marker::new([
            (told::RUN_ID, self.run.as_str()),
            (told::MARK, self.mark.as_str()),
            (told::ATTEMPT, attempt.as_str()),
        ])
    }
}
