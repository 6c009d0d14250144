//! The units an envelope limits, and a small map from unit to value.

use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

use crate::named;

named! {
    /// Unit that an envelope counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Unit {
        CostNanoUsd "cost_nano_usd",
        Tokens "tokens",
        Calls "calls",
        Loops "loops",
        /// Milliseconds since the run began, downtime included.
        WallMs "wall_ms",
        /// Milliseconds while an attempt is open; the time of a suspended machine does not count.
        ActiveMs "active_ms",
        Restarts "restarts",
    }
}

impl Unit {
    /// Returns the `code` of a refusal for this unit, the same in HTTP, gRPC and Python.
    pub fn refusal_code(self) -> &'static str {
        self.facts().0
    }

    /// Returns the flag of `outlast budget` that raises this unit's limit.
    pub fn raise_flag(self) -> &'static str {
        self.facts().1
    }

    /// Returns the word for this unit that people type, as in `--add-usd`.
    pub fn word(self) -> &'static str {
        self.raise_flag().trim_start_matches("--add-")
    }

    fn facts(self) -> (&'static str, &'static str) {
        match self {
            Unit::CostNanoUsd => ("dollar_budget_exceeded", "--add-usd"),
            Unit::Tokens => ("token_budget_exceeded", "--add-tokens"),
            Unit::Calls => ("call_budget_exceeded", "--add-calls"),
            Unit::Loops => ("loop_budget_exceeded", "--add-loops"),
            Unit::WallMs => ("time_budget_exceeded", "--add-wall"),
            Unit::ActiveMs => ("time_budget_exceeded", "--add-active"),
            Unit::Restarts => ("restart_budget_exceeded", "--add-restarts"),
        }
    }

    /// Returns whether a run's use of this unit also counts in its ancestors' envelopes and in windows of named
    /// budgets.
    pub fn propagates(self) -> bool {
        matches!(self, Unit::CostNanoUsd | Unit::Tokens | Unit::Calls)
    }

    /// Formats a value of this unit for people: `0.25 usd`, `12 calls`, `1 min 30 s`.
    pub fn show(self, value: i64) -> String {
        match self {
            Unit::CostNanoUsd => format!("{} usd", crate::words::money::NanoUsd(value)),
            Unit::WallMs | Unit::ActiveMs => crate::words::duration::words(value),
            Unit::Tokens => counted(value, "token"),
            Unit::Calls => counted(value, "call"),
            Unit::Loops => counted(value, "loop"),
            Unit::Restarts => counted(value, "restart"),
        }
    }
}

fn counted(count: i64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// Largest cost in nano-USD (a million usd), and largest number of tokens, that one call is charged. A report beyond all
/// reason must not make the sums of a whole store overflow.
pub const MOST_PER_CALL: i64 = 1_000_000_000_000_000;

/// One value for each unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PerUnit<T>(pub [T; 7]);

impl<T> Index<Unit> for PerUnit<T> {
    type Output = T;
    fn index(&self, u: Unit) -> &T {
        &self.0[u as usize]
    }
}

impl<T> IndexMut<Unit> for PerUnit<T> {
    fn index_mut(&mut self, u: Unit) -> &mut T {
        &mut self.0[u as usize]
    }
}

/// Limits of an envelope: `None` is no limit.
pub type Limits = PerUnit<Option<i64>>;

impl Limits {
    /// Returns limits of which none is higher than in `most`: where there is no limit, the one of `most`.
    pub fn within(mut self, most: &Limits) -> Limits {
        for unit in Unit::ALL {
            self[unit] = self[unit].into_iter().chain(most[unit]).min();
        }
        self
    }
}

/// Amounts of every unit.
pub type Amounts = PerUnit<i64>;

impl Amounts {
    /// Returns amounts of cost and tokens only, as in a call's bound and bill.
    pub fn of(cost_nano_usd: i64, tokens: i64) -> Self {
        let mut a = Self::default();
        a[Unit::CostNanoUsd] = cost_nano_usd;
        a[Unit::Tokens] = tokens;
        a
    }

    /// Returns cost and tokens of one call, each at most [`MOST_PER_CALL`].
    pub fn of_call(cost_nano_usd: i64, tokens: u64) -> Self {
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        Self::of(cost_nano_usd.min(MOST_PER_CALL), tokens.min(MOST_PER_CALL))
    }

    pub fn with(mut self, unit: Unit, value: i64) -> Self {
        self[unit] = value;
        self
    }

    /// Returns the lesser of both, unit by unit.
    pub fn least(self, other: &Self) -> Self {
        self.each(other, i64::min)
    }

    /// Returns the greater of both, unit by unit.
    pub fn most(self, other: &Self) -> Self {
        self.each(other, i64::max)
    }

    fn each(self, other: &Self, of: impl Fn(i64, i64) -> i64) -> Self {
        PerUnit(std::array::from_fn(|unit| of(self.0[unit], other.0[unit])))
    }

    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|v| *v == 0)
    }

    pub fn cost(&self) -> i64 {
        self[Unit::CostNanoUsd]
    }

    pub fn tokens(&self) -> i64 {
        self[Unit::Tokens]
    }

    /// Returns the part that also counts in ancestors' envelopes and in windows of named budgets.
    pub fn propagating(mut self) -> Self {
        for u in Unit::ALL {
            if !u.propagates() {
                self[u] = 0;
            }
        }
        self
    }
}

impl std::ops::Add for Amounts {
    type Output = Amounts;
    fn add(self, o: Amounts) -> Amounts {
        self.each(&o, i64::saturating_add)
    }
}

impl std::ops::Sub for Amounts {
    type Output = Amounts;
    fn sub(self, o: Amounts) -> Amounts {
        self.each(&o, i64::saturating_sub)
    }
}

impl std::ops::AddAssign for Amounts {
    fn add_assign(&mut self, o: Amounts) {
        *self = *self + o;
    }
}

impl std::ops::SubAssign for Amounts {
    fn sub_assign(&mut self, o: Amounts) {
        *self = *self - o;
    }
}
