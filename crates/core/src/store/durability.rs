//! How durable an operation is when its ticket resolves.

/// When an operation's ticket may resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// No ticket waits for it; rides with the next commit. Only delivery marks.
    Lazy,
    /// Committed: survives kill -9, reaches the disk with the next synced group.
    Committed,
    /// On disk.
    Synced,
}
