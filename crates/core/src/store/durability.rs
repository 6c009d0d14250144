//! Durability levels: the point at which an operation's ticket resolves.

/// Durability an operation must reach before its ticket resolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// No ticket waits for the operation: it is written with the next commit. Used only for delivery marks.
    Lazy,
    /// The operation is committed: it survives `kill -9`, and reaches the disk with the next synced group.
    Committed,
    /// The operation is on disk: it survives a loss of power.
    Synced,
}
