//! Reach of the simulation: troubles and rules whose findings are being mended elsewhere. A planted defect of the same
//! class has them all the same.

/// Longest time for which the whole store is away, in milliseconds. Beyond half a lease, observers that count their own
/// outage as others' silence declare the living dead.
pub const LONGEST_OUTAGE_MS: u64 = 1_000;

/// Whether the machine's clock jumps ahead and is set right again.
pub const CLOCK_JUMPS: bool = false;

/// Whether doubt has to be shown in full also where a retry was cut off below the lost call's cap.
pub const DOUBT_IN_FULL: bool = false;

/// Whether the database loses what was not synced while the processes live.
pub const LOSES_ALIVE: bool = true;
