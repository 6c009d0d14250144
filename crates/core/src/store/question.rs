//! Questions: what callers read from a store, as data beside [`Op`](crate::engine::op::Op). A store answers all of them
//! in one function, and a store in front of another one passes on those that it does not change.

use super::*;

/// Calls the macro `$then` with a row for each question: its name, the method that asks it, and its answer.
macro_rules! questions {
    ($then:ident) => {
        $then! {
            RunNo => run_no(id: &'_ RunId) -> Option<RunNo>;
            Run => run(no: RunNo) -> Option<RunView>;
            Runs => runs(filter: &'_ RunFilter) -> Vec<RunView>;
            /// Counts the runs of each status that some run has, in the order of their codes. Reads an index of all
            /// runs.
            Statuses => statuses() -> Vec<(Status, i64)>;
            /// Returns the approvals of all runs or of one, newest request first.
            Approvals => approvals(filter: &'_ ApprovalFilter) -> Vec<Entry>;
            Envelope => envelope(no: EnvelopeNo) -> Option<Envelope>;
            /// Returns the named budgets that were not removed, in the order of their creation.
            Budgets => budgets() -> Vec<BudgetView>;
            /// Returns all attempts of a run, oldest first.
            Attempts => attempts(run: RunNo) -> Vec<Attempt>;
            Entry => entry(run: RunNo, seq: Seq) -> Option<Entry>;
            /// Returns entries after `after`, in order, at most `limit`.
            Entries => entries(run: RunNo, after: Seq, limit: usize) -> Vec<Entry>;
            /// Returns the newest entry of each item of a job, in the order of the entries. The time is linear in the
            /// page. With `values`, each comes with its recorded result or error if that is stored in at most
            /// `WHOLE_VALUE` bytes; larger ones are read with `payload`. One query.
            Items => items(run: RunNo, page: &'_ Page) -> Vec<(ItemRow, Option<Payload>)>;
            /// Returns the steps of a run after `after`, in order, at most `limit`. Each comes with its recorded value
            /// if that is stored in at most `INLINE_VALUE` bytes; larger values are read with `payload`. One query.
            Steps => steps(run: RunNo, after: Seq, limit: usize) -> Vec<(StepRow, Option<Payload>)>;
            /// Returns the newest entry that matches `sought`; `None` if none does.
            Newest => newest(run: RunNo, sought: &'_ Sought) -> Option<Entry>;
            /// Returns the newest call of a run whose request body is kept, if it is found among a bounded number of
            /// the run's newest rows. Its body is the base of the next one after a restart; without a base nothing is
            /// lost.
            NewestRequest => newest_request(run: RunNo) -> Option<Seq>;
            /// Returns an entry's stored payload of this role, with the parts of a long one joined; `None` if there is
            /// none.
            Payload => payload(run: RunNo, seq: Seq, role: Role) -> Option<Payload>;
            /// Returns events after a mark, in the order in which the store gives them out. No event with a smaller
            /// mark comes later: where several processes commit at once, events wait for the transactions that began
            /// before theirs.
            Events => events(query: &'_ EventQuery) -> Vec<Event>;
            /// Returns the mark of the newest event that [`Store::events`] gives out now.
            NewestEvent => newest_event() -> Mark;
            /// Returns how far the deliveries have come, for every endpoint that was ever delivered to, by name.
            Deliveries => deliveries() -> Vec<Delivery>;
            LiveInstances => live_instances() -> Vec<Instance>;
            Instance => instance(no: InstanceNo) -> Option<Instance>;
            /// Returns what the calls opened between two times cost, in the order of runs. Whole days come from the sums
            /// that commits keep: the time grows with the calls of the days at both ends, and with the groups.
            Ledger => ledger(since: Micros, until: Micros) -> Vec<LedgerLine>;
            /// Returns all lines of a run, as commits have summed them.
            Sums => sums(run: RunNo) -> Vec<LedgerLine>;
            /// Returns the keys that sign run tokens, newest first. They are created with the store. No text asks for
            /// them: nobody outside this machine may.
            #[serde(skip)]
            TokenKeys => token_keys() -> Vec<TokenKey>;
            /// Returns the time of the store's clock.
            Now => now() -> Micros;
            /// Returns the newest version of a key of the state: the tombstone of a deleted key, `None` for an unknown
            /// one. Reads of the state see one moment each. Errors: `Corrupt` for a value that cannot be read;
            /// `Compacted` for a read of what compaction has removed.
            State => state(namespace: &'_ str, agent: &'_ str, key: &'_ str) -> Option<Item>;
            /// Returns one version of a key, by number or by point in time. `None` when it did not exist yet.
            StateAt => state_at(namespace: &'_ str, agent: &'_ str, key: &'_ str, which: Which) -> Option<Item>;
            /// Returns versions of a key above `after`, oldest first, at most `limit`.
            StateHistory => state_history(
                namespace: &'_ str, agent: &'_ str, key: &'_ str, after: i64, limit: usize
            ) -> History;
            /// Lists live keys without reading their values.
            StateKeys => state_keys(scan: &'_ Scan) -> Vec<Listed>;
            /// Returns live keys with their values.
            StateScan => state_scan(scan: &'_ Scan) -> Vec<Item>;
            /// Returns the changes to an agent's keys.
            StateEvents => state_events(range: &'_ EventRange) -> EventPage;
            /// Returns the point at which a loop over `prefix0`, `prefix1`, … resumes. The cost does not depend on
            /// the number of keys, except for a prefix that ends in a digit.
            ResumePoint => resume_point(namespace: &'_ str, agent: &'_ str, prefix: &'_ str) -> ResumePoint;
            /// Returns the newest position of the store, at which a transaction that begins now reads.
            StatePosition => state_position() -> Position;
            Namespace => namespace(name: &'_ str) -> Option<Namespace>;
            /// Returns at most `limit` namespaces after `after`, in the order of their UTF-8 bytes.
            Namespaces => namespaces(after: After, limit: usize) -> Vec<Namespace>;
            /// Returns at most `limit` agents of a namespace after `after`, in the order of their UTF-8 bytes.
            Agents => agents(namespace: &'_ str, after: After, limit: usize) -> Vec<String>;
            /// Returns the outcome of the transaction with this id. `None` when it was not committed, or was committed
            /// longer ago than ids are kept: see [`crate::engine::state::transaction::unknown`].
            TransactionOutcome => transaction_outcome(id: &'_ str) -> Option<Committed>;
        }
    };
}

/// Argument of a question.
trait Argument {
    /// Returns the number of rows that the argument asks for; `None` if it names none.
    fn limit(&mut self) -> Option<&mut usize>;
}

impl Argument for usize {
    fn limit(&mut self) -> Option<&mut usize> {
        Some(self)
    }
}

macro_rules! arguments {
    ($($Type:ty $(: $limit:ident)?),* $(,)?) => {
        $(impl Argument for $Type {
            fn limit(&mut self) -> Option<&mut usize> {
                None$(.or(Some(&mut self.$limit)))?
            }
        })*
    };
}

arguments! {
    RunFilter: limit, ApprovalFilter: limit, Page: limit, EventQuery: limit, Scan: limit, EventRange: limit,
    RunId, RunNo, EnvelopeNo, Seq, Sought, Role, InstanceNo, Micros, String, i64, Which, After,
}

macro_rules! question_and_answer {
    ($($(#[doc = $doc:expr])* $(#[serde($serde:ident)])? $question:ident =>
       $method:ident($($arg:ident: $(& $lifetime:lifetime)? $type:ident),*) -> $answer:ty;)*) => {
        /// Question to a store: one variant per read.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Question {
            $($(#[doc = $doc])* $(#[serde($serde)])? $question { $($arg: <$type as ToOwned>::Owned),* },)*
        }

        impl Question {
            /// Returns the question with at most `most` rows asked for. One row, or a list that a store has whole, has no
            /// such bound.
            pub fn bounded(mut self, most: usize) -> Question {
                match &mut self {
                    $(Question::$question { $($arg),* } => {
                        $($arg.limit().into_iter().for_each(|limit| *limit = most.min(*limit));)*
                    })*
                }
                self
            }
        }

        /// Answer to the question of the same name.
        #[expect(clippy::large_enum_variant, reason = "an answer is moved once, from the store to who asked")]
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Answer {
            $($(#[serde($serde)])? $question($answer),)*
        }
    };
}

questions!(question_and_answer);

/// Defines a method of [`Store`](super::Store) for each question, which asks it and unwraps the answer.
macro_rules! ask_each {
    ($($(#[doc = $doc:expr])* $(#[serde($serde:ident)])? $question:ident =>
       $method:ident($($arg:ident: $(& $lifetime:lifetime)? $type:ident),*) -> $answer:ty;)*) => {
        $(
            $(#[doc = $doc])*
            fn $method(&self, $($arg: $(& $lifetime)? $type),*) -> Result<$answer, Error> {
                match self.answer(&Question::$question { $($arg: $arg.to_owned()),* })? {
                    Answer::$question(answer) => Ok(answer),
                    _ => Err(Error::Engine(engine::Error::NotLoaded("another question's answer"))),
                }
            }
        )*
    };
}

pub(super) use {ask_each, questions};
