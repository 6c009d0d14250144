//! Acts: entries that say who gave an order to a run.

use serde::{Deserialize, Serialize};

use super::Entry;
use crate::engine::checkpoint::OURS;

/// Prefix of the key of an act's entry, which is a checkpoint of Outlast's own without a value.
pub const PREFIX: &str = "outlast:act:";

/// Most characters of a name or a reason that are kept.
const MOST: usize = 200;

/// Details of an act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActDetail {
    /// Name of who acted, and through what: `cli:ann@laptop`, `page:4f2a91c0`, `api:token`, `agent:RUN`.
    pub by: String,
    /// Details of the order beyond its name: a reason, a change of limits, the id of a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
}

impl ActDetail {
    /// Builds the details. Control characters are left out, and long texts are cut.
    pub fn new(by: &str, about: Option<String>) -> ActDetail {
        ActDetail { by: plain(by), about: about.map(|text| plain(&text)) }
    }
}

/// Returns the text without control characters, cut to the greatest length that is kept.
pub fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST).collect()
}

impl Entry {
    /// Returns the name of the act and its details, if the entry is one.
    pub fn act(&self) -> Option<(&str, &ActDetail)> {
        let name = self.key.as_deref()?.strip_prefix(PREFIX)?;
        Some((name, self.step.as_ref()?.act.as_ref()?))
    }

    /// Returns whether the entry is bookkeeping of Outlast's own, such as a copy of an agent's session. An act is not.
    pub fn is_bookkeeping(&self) -> bool {
        self.key.as_deref().is_some_and(|key| key.starts_with(OURS) && !key.starts_with(PREFIX))
    }
}
