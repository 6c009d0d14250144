//! Owners of namespaces, and the tables that Outlast itself keeps in the state.

use std::sync::Arc;

use crate::{
    run::snapshot,
    state::{Name, Retention},
};

/// Prefix of the namespaces of runs.
pub(super) const RUNS: &str = "run:";

/// Prefix of the namespaces of Outlast's own tables.
const OURS: &str = "outlast:";

/// Writers that a namespace admits. Its name alone decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Everybody writes there.
    Anyone,
    /// One run writes there.
    Run,
    /// Only verbs of Outlast's own write there: no caller, run, or person names the key or the value.
    Outlast,
}

impl Owner {
    pub fn of(namespace: &str) -> Owner {
        if namespace.starts_with(RUNS) {
            Owner::Run
        } else if namespace.starts_with(OURS) || snapshot::run_of(namespace).is_some() {
            Owner::Outlast
        } else {
            Owner::Anyone
        }
    }

    /// Returns the owner's name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Owner::Anyone => "anyone",
            Owner::Run => "its own run",
            Owner::Outlast => "Outlast itself",
        }
    }
}

/// Table of Outlast's own. Its rows are the keys of one agent in one namespace of the state, as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Named policies, by name.
    Policies,
    /// Plans of logins as their providers told them last, by login.
    Plans,
    /// Shares of upstreams' limits over the servers of a store, by upstream.
    Shares,
    /// Costs of forgotten runs, by their numbers.
    Spend,
    /// Bundles that were imported, by their digests.
    Bundles,
}

impl Table {
    pub const ALL: [Table; 5] = [Table::Policies, Table::Plans, Table::Shares, Table::Spend, Table::Bundles];

    pub fn namespace(self) -> &'static str {
        self.facts().0
    }

    pub fn agent(self) -> &'static str {
        self.facts().1
    }

    /// Returns the versions of a row that are kept.
    pub fn keep(self) -> Retention {
        self.facts().2
    }

    /// Returns namespace, agent and kept versions. Plans and shares change with each call.
    fn facts(self) -> (&'static str, &'static str, Retention) {
        match self {
            Table::Policies => ("outlast:policies", "policy", Retention::All),
            Table::Plans => ("outlast:plans", "login", Retention::Last(1)),
            Table::Shares => ("outlast:shares", "upstream", Retention::Last(1)),
            Table::Spend => ("outlast:spend", "run", Retention::Last(1)),
            Table::Bundles => ("outlast:bundles", "digest", Retention::Last(1)),
        }
    }

    /// Returns the full name of a row.
    pub fn name(self, key: &str) -> Arc<Name> {
        Name::new(self.namespace(), self.agent(), key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespaces_name_decides_who_writes_it() {
        for table in Table::ALL {
            assert_eq!(Owner::of(table.namespace()), Owner::Outlast, "{table:?}");
        }
        for (namespace, owner) in [
            ("outlast:what a later version adds", Owner::Outlast),
            ("snapshots:r", Owner::Outlast),
            ("run:r", Owner::Run),
            ("default", Owner::Anyone),
            ("", Owner::Anyone),
            ("outlast", Owner::Anyone),
        ] {
            assert_eq!(Owner::of(namespace), owner, "{namespace:?}");
        }
    }
}
