//! News of a store beside its answers: hints of the other processes, and commits that its database lost.

use std::{fmt, ops::BitOr, sync::Arc};

/// Callback of this process, called when another process of the store has sent a hint.
pub type Hint = Arc<dyn Fn(News) + Send + Sync>;

/// Kinds of change that a hint tells of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News(u8);

/// Letter of each kind in the text of a hint, in the order of their bits.
const LETTERS: [char; 4] = ['r', 'e', 's', 'j'];

impl News {
    /// An envelope has room where calls may not have fitted before.
    pub const ROOM: News = News(1);
    /// Events were written: a person's decision, a raise, the end of a run.
    pub const EVENTS: News = News(1 << 1);
    /// The state has a new commit.
    pub const STATE: News = News(1 << 2);
    /// A call is over whose answer a request at another process waits for.
    pub const JOINED: News = News(1 << 3);
    /// News of which nothing is known: it may be of any kind.
    pub const ANY: News = News(0b1111);

    pub fn is_any(self) -> bool {
        self != News::default()
    }

    /// Returns whether the two have a kind in common.
    pub fn concerns(self, other: News) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the news if they are told, and none otherwise.
    pub fn when(self, told: bool) -> News {
        if told { self } else { News::default() }
    }

    /// Returns the news as a word of letters.
    pub fn word(self) -> String {
        (0..).zip(LETTERS).filter_map(|(bit, letter)| (self.0 >> bit & 1 == 1).then_some(letter)).collect()
    }

    /// Reads a word of [`News::word`]. A word of another version of Outlast, which has other letters or none, is
    /// [`News::ANY`].
    pub fn read(word: &str) -> News {
        if word.is_empty() || word.contains(|c| !LETTERS.contains(&c)) {
            return News::ANY;
        }
        (0..)
            .zip(LETTERS)
            .fold(News::default(), |n, (bit, letter)| n | News(1 << bit).when(word.contains(letter)))
    }
}

impl BitOr for News {
    type Output = News;

    fn bitor(self, other: News) -> News {
        News(self.0 | other.0)
    }
}

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
    fn news_are_read_as_they_were_written_and_unknown_ones_concern_everybody() {
        let two = News::ROOM | News::JOINED;
        for news in [News::ROOM, News::EVENTS, News::STATE, News::JOINED, two, News::ANY] {
            assert_eq!(News::read(&news.word()), news);
        }
        for word in ["", "x", "rx"] {
            assert_eq!(News::read(word), News::ANY, "{word}");
        }
        assert!(two.concerns(News::JOINED) && !two.concerns(News::STATE) && !News::default().is_any());
    }
}

#[cfg(test)]
mod loss_tests {
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
