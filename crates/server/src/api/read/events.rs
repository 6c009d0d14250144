//! Events: pages in JSON, or a stream of server-sent events that goes on.
//!
//! Events of all runs are rows of the store. For one run, the openings and closings of its entries are given too. They
//! are no rows: the cursor holds how far the journal was seen and which entries were open then.
//!
//! Progress of runs under way and of the state, for readers of the stream of events: ordinary calls, steps and writes of
//! the state make no event.
//!
//! Nothing of it is kept. A reader that comes again is told what changes from then on.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, header};
use outlast_core::{
    events::{EventQuery, Kind, Mark},
    journal::{Entry, State},
    reads::runs::{self, RunSearch},
    run::Status,
    state::Position,
    store::{self, News, RunView, Store},
    words::{RunNo, Seq},
};
use outlast_view::{
    self as view,
    money::{Reserved, Spent},
    shape,
};
use serde::Serialize;
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};

use crate::{
    api::{
        request::{Answered, ApiRequest, json, of_type},
        state::show::Runs,
    },
    proxy::host::Host,
    state::Error,
    wire::body::{AnswerBody, Piece},
};

/// Default number of events in a page. `MOST` is the largest.
const PAGE: usize = 200;
const MOST: usize = 1_000;

/// Most entries of one run that may be open at a cursor. Entries beyond this number are reported only when
/// they close, as opened and closed.
const MOST_OPEN: usize = 1_000;

/// Interval between two looks for new events while a client follows.
const LOOK: Duration = Duration::from_millis(250);

/// Number of looks for new events to one for the progress of runs.
const PROGRESS: u32 = 4;

/// Least time between two looks at the progress of runs that commits of the state ask for.
const CALM: Duration = Duration::from_millis(100);

/// Silence after which a comment is sent, so that intermediaries keep the connection.
const QUIET: Duration = Duration::from_secs(15);

/// Number of pieces buffered for the client.
const AHEAD: usize = 4;

const OPENED: &str = "entry_opened";
const CLOSED: &str = "entry_closed";

/// Place in the sequence of events after which a reader continues. Clients must not interpret its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    mark: Mark,
    /// Newest entry of the run that was seen; 0 for a reader of all runs.
    seen: Seq,
    /// Entries up to `seen` that were still open when this reader read them.
    open: Vec<Seq>,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.mark.transaction, self.mark.no)?;
        if self.seen > Seq(0) {
            let open: Vec<String> = self.open.iter().map(Seq::to_string).collect();
            write!(f, ".{}.{}", self.seen, open.join("_"))?;
        }
        Ok(())
    }
}

impl FromStr for Cursor {
    type Err = Error;
    fn from_str(text: &str) -> Result<Cursor, Error> {
        let bad = || Error::BadRequest("the cursor is none that was given here".into());
        let number = |word: &str| word.parse::<i64>().ok().filter(|n| *n >= 0).ok_or_else(bad);
        let words: Vec<&str> = text.split('.').collect();
        let (mark, rest) = match words.as_slice() {
            [transaction, no, rest @ ..] => {
                (Mark { transaction: number(transaction)?, no: number(no)? }, rest)
            }
            _ => return Err(bad()),
        };
        let (seen, open) = match rest {
            [] => (Seq(0), Vec::new()),
            [seen, open] => {
                let open = open.split('_').filter(|word| !word.is_empty());
                let open = open.map(|word| number(word).map(Seq)).collect::<Result<Vec<_>, _>>()?;
                (Seq(number(seen)?), open)
            }
            _ => return Err(bad()),
        };
        if open.len() > MOST_OPEN {
            return Err(bad());
        }
        Ok(Cursor { mark, seen, open })
    }
}

/// Reader of the events that follow a cursor.
#[derive(Clone)]
struct Reading {
    run: Option<RunView>,
    /// Names of the event kinds to return; all kinds if empty.
    kinds: Vec<&'static str>,
    cursor: Cursor,
    limit: usize,
}

impl Reading {
    /// Reads the next events, each with the cursor after it, and moves on. Empty when there are none yet.
    fn page(&mut self, store: &dyn Store) -> Result<Vec<(view::Event, String)>, store::Error> {
        let mut given = Vec::new();
        let no = self.run.as_ref().map(|view| view.run.no);
        let wanted = EventQuery { run: no, after: self.cursor.mark, limit: self.limit };
        let mut runs = Runs::default();
        for event in store.events(&wanted)? {
            self.cursor.mark = event.mark;
            let run = event.run.map(|no| runs.id(store, no)).transpose()?.flatten();
            if self.gives(event.kind.name()) {
                given.push((view::Event::new(&event, run), self.cursor.to_string()));
            }
        }
        if let Some(run) = no.filter(|_| given.len() < self.limit) {
            self.entries(store, run, &mut given)?;
        }
        Ok(given)
    }

    /// Adds the openings and closings of entries since the cursor.
    fn entries(
        &mut self,
        store: &dyn Store,
        run: RunNo,
        given: &mut Vec<(view::Event, String)>,
    ) -> Result<(), store::Error> {
        for seq in self.cursor.open.clone() {
            if given.len() >= self.limit {
                return Ok(());
            }
            let Some(entry) = store.entry(run, seq)? else { continue };
            if entry.state != State::Open {
                self.cursor.open.retain(|open| *open != seq);
                self.give(CLOSED, &entry, given);
            }
        }
        let room = (self.limit - given.len()).div_ceil(2).max(1);
        for entry in store.entries(run, self.cursor.seen, room)? {
            if entry.state == State::Open && self.cursor.open.len() >= MOST_OPEN {
                // The cursor stays before this entry, which is read again once others have closed.
                return Ok(());
            }
            // One move of the cursor gives both, so that no reader has the half of it.
            self.cursor.seen = entry.seq;
            if entry.state == State::Open {
                self.cursor.open.push(entry.seq);
                self.give(OPENED, &entry, given);
                continue;
            }
            let before = given.len();
            self.give(OPENED, &entry, given);
            self.give(CLOSED, &entry, given);
            // A reader that stops between the two begins with the closing: the entry counts as open there.
            if given.len() == before + 2 {
                let mut between = self.cursor.clone();
                between.open.push(entry.seq);
                given[before].1 = between.to_string();
            }
        }
        Ok(())
    }

    fn gives(&self, kind: &str) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&kind)
    }

    fn give(&self, kind: &'static str, entry: &Entry, given: &mut Vec<(view::Event, String)>) {
        let Some(view) = self.run.as_ref().filter(|_| self.gives(kind)) else { return };
        let at = if kind == CLOSED { entry.closed_at.unwrap_or(entry.opened_at) } else { entry.opened_at };
        let id = &view.run.id;
        let told = view::Event::told(at, kind, Some(id.clone()), json!(view::Entry::new(id, entry)));
        given.push((view::Event { seq: Some(entry.seq), ..told }, self.cursor.to_string()));
    }

    /// Moves the cursor to the newest event: only later events are returned.
    fn skip(&mut self, store: &dyn Store) -> Result<(), store::Error> {
        self.cursor.mark = store.newest_event()?;
        if let Some(view) = &self.run {
            let last = store.run(view.run.no)?.map_or(0, |view| view.run.next_seq.0 - 1);
            let from = (last - MOST_OPEN as i64).max(0);
            let near = store.entries(view.run.no, Seq(from), MOST_OPEN)?;
            let open = near.iter().filter(|e| e.state == State::Open).map(|e| e.seq).collect();
            self.cursor = Cursor { seen: Seq(last), open, ..self.cursor.clone() };
        }
        Ok(())
    }
}

/// Event with the cursor after it.
#[derive(Serialize)]
struct Placed {
    #[serde(flatten)]
    event: view::Event,
    cursor: String,
}

/// Answers with a page of events, or with a stream if the client accepts one.
pub async fn events(asked: ApiRequest) -> Answered {
    let query = &asked.query;
    let run = match (asked.caller.only_run(), query.text("run")) {
        (_, Some(id)) => Some(asked.named(id).await?),
        (Some(own), None) => asked.read(move |store| store.run(own)).await?,
        (None, None) => None,
    };
    let names: Vec<&'static str> = Kind::ALL
        .iter()
        .map(|kind| kind.name())
        .chain([OPENED, CLOSED, RUN_PROGRESS, STATE_CHANGED])
        .collect();
    let kinds = super::words(query, "kind", &names, |name| name)?;
    let streams = asked
        .headers
        .get(header::ACCEPT)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.contains("text/event-stream"));
    let last = asked.headers.get("last-event-id").filter(|_| streams);
    let last = last.map(|v| v.to_str().unwrap_or_default());
    let (cursor, from_now) = match last.or(query.text("after")) {
        None => (Cursor::default(), false),
        Some("now") => (Cursor::default(), true),
        Some(text) => (text.parse()?, false),
    };
    let limit = query.limit(PAGE, MOST)?;
    let progress = query.flag("progress")?;
    if progress && !streams {
        return Err(Error::BadRequest(
            "progress is told in a stream: ask with \"Accept: text/event-stream\"".into(),
        ));
    }
    let reading = Reading { run, kinds, cursor, limit };
    let reading = asked
        .read(move |store| {
            let mut reading = reading;
            if from_now {
                reading.skip(store)?;
            }
            Ok(reading)
        })
        .await?;
    if streams {
        let (sender, pieces) = mpsc::channel(AHEAD);
        tokio::spawn(feed(asked.host.clone(), reading, progress.then(Progress::default), sender));
        let mut response = of_type(Bytes::new(), "text/event-stream").map(|_| AnswerBody::stream(pieces));
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        return Ok(response);
    }
    let (given, cursor) = asked
        .read(move |store| {
            let mut reading = reading;
            let given = reading.page(store)?;
            Ok((given, reading.cursor.to_string()))
        })
        .await?;
    let events: Vec<Placed> = given.into_iter().map(|(event, cursor)| Placed { event, cursor }).collect();
    json(&json!({ "events": events, "cursor": cursor }))
}

/// Sends events as they come, until the client leaves or the server is about to end.
async fn feed(
    host: Arc<Host>,
    mut reading: Reading,
    mut progress: Option<Progress>,
    to: mpsc::Sender<Piece>,
) {
    // The first look comes before the cursor: what a client reads once it has that, is no older.
    if let Some(mut first) = progress.take() {
        let (store, of) = (host.store.clone(), reading.run.clone());
        let look = tokio::task::spawn_blocking(move || first.look(&*store, of.as_ref()).map(|_| first));
        // Of a store that does not answer now, the loop below tells.
        progress = look.await.ok().map(Result::unwrap_or_default);
    }
    let mut looks = 1_u32;
    let mut said = Instant::now();
    let of_state = if progress.is_some() && reading.run.is_none() { News::STATE } else { News::default() };
    let mut ear = host.node.hints().ear(News::EVENTS | of_state);
    let (mut news, mut looked) = (News::default(), Instant::now());
    // The cursor goes out at once: a client that loses its connection before the first event misses none.
    let mut text = format!("id: {}\nevent: cursor\ndata: {{}}\n\n", reading.cursor);
    loop {
        if !text.is_empty() {
            said = Instant::now();
            if to.send(Piece::Frame(Bytes::from(std::mem::take(&mut text)))).await.is_err() {
                return;
            }
        }
        let store = host.store.clone();
        let looks_at_progress = looks.is_multiple_of(PROGRESS) || news.concerns(News::STATE);
        looks = looks.wrapping_add(1);
        let read = tokio::task::spawn_blocking(move || {
            let given = reading.page(&*store).and_then(|events| {
                let look = progress.as_mut().filter(|_| looks_at_progress);
                let moved = look.map(|p| p.look(&*store, reading.run.as_ref())).transpose()?;
                Ok((events, moved.unwrap_or_default()))
            });
            (reading, progress, given)
        });
        let Ok((again, kept, given)) = read.await else { return };
        (reading, progress) = (again, kept);
        match given {
            Ok((given, moved)) => {
                for (event, cursor) in &given {
                    text.push_str(&format!(
                        "id: {cursor}\nevent: {}\ndata: {}\n\n",
                        event.kind,
                        json!(event)
                    ));
                }
                // Without an id: the reader's place is that of the last event.
                for event in moved.iter().filter(|event| reading.gives(event.kind)) {
                    text.push_str(&format!("event: {}\ndata: {}\n\n", event.kind, json!(event)));
                }
                if !text.is_empty() {
                    continue;
                }
            }
            // The client comes again with its cursor.
            Err(e) => {
                let data = json!({ "code": e.code(), "message": e.to_string() });
                let _ = to.send(Piece::Frame(format!("event: error\ndata: {data}\n\n").into())).await;
                let _ = to.send(Piece::End).await;
                return;
            }
        }
        if host.is_draining() {
            let _ = to.send(Piece::End).await;
            return;
        }
        if said.elapsed() >= QUIET {
            text.push_str(":\n\n");
        }
        tokio::select! {
            () = to.closed() => return,
            heard = ear.pause(LOOK) => news = heard,
        }
        if news.concerns(News::STATE) {
            // A busy state has commits without end, and a look at all runs is not small.
            tokio::time::sleep(CALM.saturating_sub(looked.elapsed())).await;
            looked = Instant::now();
        }
    }
}

const RUN_PROGRESS: &str = "run_progress";
const STATE_CHANGED: &str = "state_changed";

/// Most runs whose progress is reported: the newest ones under way.
const MOST_RUNS: usize = 100;

/// Rows of the runs under way and position of the state, as they were at the last call of `look`.
#[derive(Default)]
struct Progress(Option<Seen>);

struct Seen {
    runs: BTreeMap<RunNo, RunView>,
    state: Position,
}

impl Progress {
    /// Returns a message for each run under way whose row or budget has changed since the last call, or that was not
    /// under way then. The first call returns no messages. There is no message for a run that is no longer under way:
    /// that is an event of its own. A reader of all runs also gets a message when the state was
    /// written.
    fn look(&mut self, store: &dyn Store, of: Option<&RunView>) -> Result<Vec<view::Event>, store::Error> {
        let running = RunSearch { statuses: vec![Status::Running], ..RunSearch::default() };
        let found = match of {
            Some(view) => store.run(view.run.no)?.into_iter().collect(),
            None => runs::page(store, &running, MOST_RUNS)?.runs,
        };
        let now = store.now()?;
        let state = if of.is_none() { store.state_position()? } else { Position::default() };
        let before = self.0.take();
        let mut rows = BTreeMap::new();
        let mut told = Vec::new();
        for view in found {
            if before.as_ref().is_some_and(|before| before.runs.get(&view.run.no) != Some(&view)) {
                let about = json!(RunProgress::new(&view));
                told.push(view::Event::told(now, RUN_PROGRESS, Some(view.run.id.clone()), about));
            }
            rows.insert(view.run.no, view);
        }
        if before.is_some_and(|before| before.state != state) {
            told.push(view::Event::told(now, STATE_CHANGED, None, json!({ "position": state })));
        }
        self.0 = Some(Seen { runs: rows, state });
        Ok(told)
    }
}

shape! {
    /// Progress of a run under way.
    RunProgress(view: &RunView; let run = &view.run) {
        entries: i64 = run.next_seq.0 - 1;
        /// Number of entries that are closed.
        closed: i64 = run.closed;
        #[serde(flatten)] spent: Spent = Spent::new(view.run.own.cost_nano_usd);
        #[serde(flatten)] reserved: Reserved = Reserved::new(view.envelope.reserved.cost());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_given() {
        let cursors = [
            Cursor::default(),
            Cursor { mark: Mark { transaction: 812, no: 7 }, ..Cursor::default() },
            Cursor { seen: Seq(9), ..Cursor::default() },
            Cursor { mark: Mark { transaction: 0, no: 3 }, seen: Seq(9), open: vec![Seq(2), Seq(8)] },
        ];
        for cursor in cursors {
            assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
        }
        for text in ["", "7", "x.1", "-1.2", "0.1.2", "0.1.2.x", "0.1.2.3.4", "0.1.-2."] {
            assert!(text.parse::<Cursor>().is_err(), "{text}");
        }
    }
}
