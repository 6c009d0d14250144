//! Evidence for a halt without progress: calls in a row that brought an agent nothing new.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::words::{Micros, Seq};

/// Calls in a row that brought an agent nothing new.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub calls: u32,
    /// Entry of the first of them.
    pub first: Seq,
    pub since: Micros,
    /// Tool calls that the newest of them brought the results of.
    pub name: String,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evidence { calls, first, name, .. } = self;
        write!(f, "{calls} calls in a row since entry {first} brought nothing new: {name}")
    }
}
