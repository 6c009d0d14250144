//! Errors of a store.

use crate::{engine, run::masks::BadMask, words::Class};

/// Reasons why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An error of the engine: nothing was written.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error("cannot open the store {place}: {why}")]
    Open { place: String, why: String },
    #[error("cannot open the store {place}: there is no store in {within}")]
    Absent { place: String, within: String },
    #[error("the store {place} has format {found}, and this outlast knows formats up to {known}")]
    Newer { place: String, found: i64, known: i64 },
    #[error(
        "the store {place} has format {found}, written by an Outlast before 0.1, and this outlast reads \
         format {oldest} and later"
    )]
    Older { place: String, found: i64, oldest: i64 },
    /// Stored data cannot be read. The store reports it and refuses; it never starts afresh.
    #[error("the store is damaged: {what}")]
    Corrupt { what: String },
    /// The store holds less than what its mark says was committed. Nothing was changed.
    #[error("the store {place} is damaged: {what}")]
    Shorter { place: String, what: String },
    #[error("no space left for the store: {why}")]
    Full { why: String },
    #[error("the store failed: {why}")]
    Io { why: String },
    /// The store had an I/O error earlier, and refuses all work until it is reopened.
    #[error("the store refuses work after an earlier failure: {why}")]
    Refused { why: String },
    /// The server cannot be reached, or a lock is held. The store may work again without being reopened.
    #[error("the store cannot be had now: {why}")]
    Unavailable { why: String },
    /// A group of operations was neither seen to commit nor seen to roll back: whether it is stored is not
    /// known.
    #[error("it is not known whether the operation was committed: {why}")]
    CommitUnknown { why: String },
    #[error("the store is closed")]
    Closed,
    /// A file of an open store was removed, moved or replaced: the handle stays refused. Or a database was: the handle
    /// is refused until the database is back. The operation was not acknowledged; the files, wherever they are, may
    /// have it.
    #[error("the store {place} vanished: {file} was removed, moved or replaced while it was open")]
    Vanished { place: String, file: String },
    /// A process that this one was forked from had the store open. SQLite's locks do not survive a fork.
    #[error("the store {place} was open in process {opener} when this process was forked from it")]
    OpenAtFork { place: String, opener: u32 },
    /// The store is behind another machine's server, which did not do what was asked. Nothing was written.
    #[error("{message}")]
    Server { code: &'static str, class: Class, message: String, hint: Option<String> },
}

crate::error_facts! {
    Error {
        Error::Open { .. } | Error::Absent { .. } => "store_open" Unavailable,
        Error::Newer { .. } => "store_newer" Internal,
        Error::Older { .. } => "store_older" Internal,
        Error::Corrupt { .. } | Error::Shorter { .. } => "store_corrupt" Internal,
        Error::Full { .. } => "store_full" Unavailable,
        Error::Io { .. } => "store_io" Unavailable,
        Error::Refused { .. } => "store_refused" Unavailable,
        Error::Unavailable { .. } => "store_unavailable" Unavailable,
        Error::CommitUnknown { .. } => "commit_unknown" Unknown,
        Error::Closed => "store_closed" Unavailable,
        Error::Vanished { .. } => "store_vanished" Unavailable,
        Error::OpenAtFork { .. } => "store_forked" Internal,
    }
    through {
        Error::Engine(e) => e.fact(),
        Error::Server { code, class, .. } => (*code, *class),
    }
}

impl Error {
    /// Returns whether the store is away and comes back by itself: callers wait for it, and end nothing.
    pub fn is_away(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::CommitUnknown { .. })
    }

    /// Returns the error in words for the callers of a proxy, who are not told where the store is.
    pub fn callers_text(&self) -> String {
        match self {
            Error::Open { .. } | Error::Absent { .. } => "the store cannot be opened".into(),
            Error::Corrupt { .. } | Error::Shorter { .. } => "the store is damaged".into(),
            Error::Full { .. } => "no space left for the store".into(),
            Error::Io { .. } => "the store failed".into(),
            Error::Refused { .. } => "the store refuses work after an earlier failure".into(),
            Error::Unavailable { .. } => "the store cannot be had now".into(),
            Error::CommitUnknown { .. } => "it is not known whether the operation was committed".into(),
            Error::Vanished { .. } => "the store vanished".into(),
            Error::OpenAtFork { .. } => "the store was open when this process was forked".into(),
            Error::Newer { .. } | Error::Older { .. } => "the store has a format of another version".into(),
            Error::Engine(_) | Error::Closed | Error::Server { .. } => self.to_string(),
        }
    }

    /// Returns the hint for a caller over HTTP or gRPC. See [`engine::Error::callers_hint`].
    pub fn callers_hint(&self) -> Option<String> {
        match self {
            Error::Engine(e) => e.callers_hint(),
            _ => self.hint(),
        }
    }

    /// Returns a hint for a person about what to do; `None` if there is none.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::Engine(e) => return e.hint(),
            Error::Absent { place, .. } if place.contains("://") => {
                "`outlast migrate` makes its tables; or name another place with --store or OUTLAST_STORE".into()
            }
            Error::Open { place, .. } if place.contains("://") => {
                "check the address in --store or OUTLAST_STORE; its password is taken from PGPASSWORD or ~/.pgpass".into()
            }
            Error::Open { .. } | Error::Absent { .. } => "name another place with --store or OUTLAST_STORE".into(),
            Error::Newer { .. } => "use the newer outlast that wrote it; nothing was changed".into(),
            Error::Older { .. } => {
                "start a new store, or use the Outlast that wrote it; nothing was changed".into()
            }
            Error::Corrupt { .. } => {
                "nothing was changed; keep the file, and restore a copy or point --store elsewhere".into()
            }
            Error::Shorter { place, .. } => format!(
                "nothing was changed; restore a copy with its log, or see what would be lost with `outlast repair \
                 {place}` and go on without it with `outlast repair {place} --accept-shorter`"
            ),
            Error::Full { .. } => "make room on the disk; what was acknowledged is safe".into(),
            Error::Io { .. } | Error::Refused { .. } => {
                "start outlast again when the disk works; what was acknowledged is safe".into()
            }
            Error::Unavailable { .. } => "nothing was written; try again when the database answers".into(),
            Error::Vanished { place, .. } if place.contains("://") => {
                "nothing is admitted; put the database back as it was: a new store would pay again".into()
            }
            Error::Vanished { .. } => {
                "nothing is admitted; put the store back, with its -wal, and start again: a new store would pay again".into()
            }
            Error::OpenAtFork { .. } => {
                "open the store after the fork, in each process, or close it before the fork; or start processes by \
                 spawn or forkserver"
                    .into()
            }
            Error::Server { hint, .. } => return hint.clone(),
            Error::CommitUnknown { .. } | Error::Closed => return None,
        })
    }
}

impl From<BadMask> for Error {
    fn from(e: BadMask) -> Error {
        Error::Corrupt { what: format!("a run's masks, {}: {}", e.at, e.why) }
    }
}
