//! Hints between the processes of a store: kinds of change that somebody elsewhere may wait for.

use std::{ops::BitOr, sync::Arc};

/// Callback of this process, called when another process of the store has sent a hint.
pub type Hint = Arc<dyn Fn(News) + Send + Sync>;

/// Kinds of change that a hint tells of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// An envelope has room where calls may not have fitted before.
    pub room: bool,
    /// Events were written: a person's decision, a raise, the end of a run.
    pub events: bool,
    /// The state has a new commit.
    pub state: bool,
    /// A call is over whose answer a request at another process waits for.
    pub joined: bool,
}

/// Letter of each kind in the text of a hint.
const LETTERS: [char; 4] = ['r', 'e', 's', 'j'];

impl News {
    /// News of which nothing is known: it may be of any kind.
    pub const ANY: News = News { room: true, events: true, state: true, joined: true };
    pub const ROOM: News = News { room: true, ..News::NONE };
    pub const EVENTS: News = News { events: true, ..News::NONE };
    pub const STATE: News = News { state: true, ..News::NONE };
    pub const JOINED: News = News { joined: true, ..News::NONE };
    const NONE: News = News { room: false, events: false, state: false, joined: false };

    pub fn is_any(self) -> bool {
        self != News::NONE
    }

    /// Returns whether the two have a kind in common.
    pub fn concerns(self, other: News) -> bool {
        self.each().into_iter().zip(other.each()).any(|(a, b)| a && b)
    }

    /// Returns the news as a word of letters.
    pub fn word(self) -> String {
        LETTERS.into_iter().zip(self.each()).filter_map(|(letter, is)| is.then_some(letter)).collect()
    }

    /// Reads a word of [`News::word`]. A word of another version of Outlast, which has other letters or none, is
    /// [`News::ANY`].
    pub fn read(word: &str) -> News {
        if word.is_empty() || word.contains(|c| !LETTERS.contains(&c)) {
            return News::ANY;
        }
        let [room, events, state, joined] = LETTERS.map(|letter| word.contains(letter));
        News { room, events, state, joined }
    }

    fn each(self) -> [bool; 4] {
        [self.room, self.events, self.state, self.joined]
    }
}

impl BitOr for News {
    type Output = News;

    fn bitor(self, other: News) -> News {
        News {
            room: self.room || other.room,
            events: self.events || other.events,
            state: self.state || other.state,
            joined: self.joined || other.joined,
        }
    }
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
