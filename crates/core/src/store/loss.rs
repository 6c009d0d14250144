//! Commits that a database lost after it had acknowledged them.

use std::fmt;

/// Commits of this process that its store no longer has.
///
/// A database loses commits when a standby that lagged behind is promoted, when a copy is restored, and, of commits that
/// were not synced, when it crashes. It always loses the newest ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Number of lost commits. There may be more if [`Loss::is_least`].
    pub commits: u64,
    /// Number of lost commits that were acknowledged as synced.
    pub synced: u64,
    /// Whether older commits may be gone too: the process remembers only its newest ones.
    pub is_least: bool,
    /// Whether the process's own row is gone, so that it has to register anew.
    pub is_unregistered: bool,
    /// Ages of the oldest and the newest lost commit when the loss was found, in microseconds.
    pub ages_us: (i64, i64),
    /// Change of the database between the commits and the loss, in words.
    pub cause: String,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { commits, synced, is_least, ages_us: (oldest, newest), cause, .. } = self;
        let least = if *is_least { "at least " } else { "" };
        let s = if *commits == 1 { "" } else { "s" };
        let seconds = |us: i64| us.max(0) as f64 / 1e6;
        write!(
            f,
            "the database lost {least}{commits} commit{s} that it had acknowledged to this process, {synced} of them as \
             synced, made {:.1} to {:.1} s ago: {cause}",
            seconds(*oldest),
            seconds(*newest)
        )
    }
}

/// Losses that a store has found since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Number of lost commits, over all losses.
    pub commits: u64,
    pub newest: Option<Loss>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_told_with_its_count_its_time_and_its_cause() {
        let mut loss = Loss {
            commits: 3,
            synced: 1,
            is_least: false,
            is_unregistered: false,
            ages_us: (2_500_000, 1_940_000),
            cause: "a standby was promoted".into(),
        };
        let told = "the database lost 3 commits that it had acknowledged to this process, 1 of them as synced, made 2.5 \
                    to 1.9 s ago: a standby was promoted";
        assert_eq!(loss.to_string(), told);
        loss.is_least = true;
        assert!(loss.to_string().contains("lost at least 3 commits"), "{loss}");
    }
}
