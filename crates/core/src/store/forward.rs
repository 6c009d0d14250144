//! Forwards: a store in front of another one passes on the methods that it does not change.

use crate::{
    state::{Committed, Item, Listed, Namespace, Position, ResumePoint},
    store::{
        Error, Store, Which,
        state::{EventPage, EventRange, History, Reads, Scan},
    },
};

/// Store in front of another one. Its reads of state are the other one's.
pub trait Wraps {
    fn wrapped(&self) -> &dyn Store;

    /// Calls a read of the other store.
    fn read<T>(&self, read: impl Fn(&dyn Store) -> Result<T, Error>) -> Result<T, Error> {
        read(self.wrapped())
    }
}

/// Implements methods of a store's traits by those of the store that it wraps: reads (`-> T` stands for a result of
/// `T`) through [`Wraps::read`], and after `plain:` other methods by a mere call.
#[macro_export]
macro_rules! forward {
    (plain: $($name:ident($($arg:ident: $type:ty),*) -> $told:ty;)+) => {
        $(fn $name(&self, $($arg: $type),*) -> $told {
            $crate::store::forward::Wraps::wrapped(self).$name($($arg),*)
        })+
    };
    ($($name:ident($($arg:ident: $type:ty),*) -> $told:ty;)+) => {
        $(fn $name(&self, $($arg: $type),*) -> Result<$told, $crate::store::Error> {
            $crate::store::forward::Wraps::read(self, |store| store.$name($($arg),*))
        })+
    };
}

impl<W: Wraps> Reads for W {
    forward! {
        state(namespace: &str, agent: &str, key: &str) -> Option<Item>;
        state_at(namespace: &str, agent: &str, key: &str, which: Which) -> Option<Item>;
        state_history(namespace: &str, agent: &str, key: &str, after: i64, limit: usize) -> History;
        state_keys(scan: &Scan) -> Vec<Listed>;
        state_scan(scan: &Scan) -> Vec<Item>;
        state_events(range: &EventRange) -> EventPage;
        resume_point(namespace: &str, agent: &str, prefix: &str) -> ResumePoint;
        state_position() -> Position;
        namespace(name: &str) -> Option<Namespace>;
        namespaces(after: Option<&str>, limit: usize) -> Vec<Namespace>;
        agents(namespace: &str, after: Option<&str>, limit: usize) -> Vec<String>;
        transaction_outcome(id: &str) -> Option<Committed>;
    }
}
