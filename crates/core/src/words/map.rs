//! Map by ids.

use std::collections::HashMap;

/// Map whose keys are ids that Outlast gives out. Nobody outside chooses them, so a fast hash does.
pub type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
