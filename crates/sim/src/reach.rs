//! Reach of the simulation: troubles and rules whose findings are being mended elsewhere. A planted defect of the same
//! class has them all the same.

/// Longest time for which the whole store is away, in milliseconds. It is longer than any lease.
pub const LONGEST_OUTAGE_MS: u64 = 20_000;

/// Whether no heartbeat is written twice. A counter that a database lost in part comes by the same number again, which an
/// observer takes for silence.
pub const HEARTBEATS_FRESH: bool = true;

/// Whether doubt has to be shown in full also where a retry was cut off below the lost call's cap.
pub const DOUBT_IN_FULL: bool = true;

/// Whether closings name the opening that they close, so that answered openings may be lost while their process lives: by
/// a database that starts anew without what was not synced (seed 1186), or ahead of a group that fails (seeds 363, 878).
pub const OPENINGS_NAMED: bool = true;
