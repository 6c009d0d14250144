//! Routes of a run's journal: a page of entries, and one entry with its request and answer.

use http::{HeaderValue, header};
use outlast_core::{
    journal::{Entry, Kind, State},
    reads::entries::{self, EntrySearch, call_before},
    store::{self, RunView},
    words::{AttemptNo, RunId, Seq},
};
use outlast_view::{self as view, shape};
use serde::Serialize;
use serde_json::{Value, json};

use super::{exchange::Exchange, gist, words};
use crate::{
    api::request::{Answered, ApiRequest, json, of_type, unknown_entry},
    state::Error,
};

/// Default number of entries in a page. `MOST` is the largest.
const PAGE: usize = 200;
const MOST: usize = 2_000;

/// Entry as a row of a list, with its gist if that was asked for.
#[derive(Serialize)]
struct ListedEntry {
    #[serde(flatten)]
    entry: view::Entry,
    #[serde(skip_serializing_if = "Option::is_none")]
    gist: Option<String>,
    /// Whether nobody saw its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    in_doubt: Option<bool>,
}

/// Answers with a page of entries after the one that `after` names, in order. The answer's `after` is the cursor of the
/// next page, and null if no entry is left. With `gist=true` each comes with what it is about in one line.
pub async fn list(asked: ApiRequest) -> Answered {
    let query = &asked.query;
    let wanted = EntrySearch {
        kinds: words(query, "kind", &Kind::ALL, Kind::name)?,
        states: words(query, "state", &State::ALL, State::name)?,
        attempt: query.number("attempt")?.map(AttemptNo),
        key: query.text("key").map(str::to_owned),
    };
    let (after, limit) = (Seq(query.number("after")?.unwrap_or(0)), query.limit(PAGE, MOST)?);
    let with_gist = query.flag("gist")?;
    let run = asked.run().await?.run;
    let id = run.id.clone();
    let (found, next) = asked
        .read(move |store| {
            let (found, next) = entries::page(store, run.no, &wanted, after, limit)?;
            let listed = found.iter().map(|e| {
                let gist = if with_gist { gist::gist(store, e)? } else { None };
                let is_in_doubt = || Ok::<_, store::Error>(gist::told_state(store, e)? == State::Unknown);
                let in_doubt = with_gist.then(is_in_doubt).transpose()?;
                Ok(ListedEntry { entry: view::Entry::new(&run.id, e), gist, in_doubt })
            });
            Ok((listed.collect::<Result<Vec<_>, store::Error>>()?, next))
        })
        .await?;
    json(&json!({ "run": id, "entries": found, "after": next }))
}

/// Reads the entry that the path names. Errors: `unknown_run`, `unknown_entry`.
pub(super) async fn named(asked: &ApiRequest) -> Result<(RunView, Entry), Error> {
    let view = asked.run().await?;
    let (run, seq) = (view.run.no, asked.seq(&view)?);
    let found = asked.read(move |store| store.entry(run, seq)).await?;
    let entry = found.ok_or_else(|| unknown_entry(&view, &seq.to_string()))?;
    Ok((view, entry))
}

shape! {
    /// Entry with its request and answer in a form for people.
    EntryWithExchange(run: &RunId, of: &Exchange, live: bool, before: Option<Seq>, in_doubt: bool) {
        #[serde(flatten)] entry: view::Entry = view::Entry::new(run, &of.entry);
        request: Value = of.request_json();
        answer: Value = of.answer_json();
        /// Whether the answer is still coming.
        live: bool = live;
        /// Number of the call before it.
        call_before: Option<Seq> = before;
        /// Whether nobody saw its end.
        in_doubt: bool = in_doubt;
    }
}

/// Answers with one entry, its request and answer in a form for people, and the number of the call before it.
pub async fn one(asked: ApiRequest) -> Answered {
    let (view, entry) = named(&asked).await?;
    let so_far = match entry.state {
        // Only what the client of the call could have received.
        State::Open => asked.host.registry.said((view.run.no, entry.seq)),
        _ => None,
    };
    let (mut exchange, before, in_doubt) = asked
        .read(move |store| {
            let before = if entry.kind == Kind::Call { call_before(store, &entry)? } else { None };
            let in_doubt = gist::told_state(store, &entry)? == State::Unknown;
            Ok((Exchange::read(store, entry)?, before, in_doubt))
        })
        .await?;
    let live = so_far.is_some();
    exchange.answer = exchange.answer.or(so_far);
    json(&EntryWithExchange::new(&view.run.id, &exchange, live, before, in_doubt))
}

/// Answers with the bytes of an entry's request or answer, as they were sent. Browsers download them and never show
/// them as a page.
pub async fn raw(asked: ApiRequest) -> Answered {
    let answer = match asked.query.text("side") {
        None | Some("answer") => true,
        Some("request") => false,
        Some(other) => {
            return Err(Error::BadRequest(format!("side is {other:?}, and request or answer is wanted")));
        }
    };
    let (view, entry) = named(&asked).await?;
    let seq = entry.seq;
    let exchange = asked.read(move |store| Exchange::read(store, entry)).await?;
    let bytes = if answer { exchange.answer } else { exchange.request };
    let side = if answer { "answer" } else { "request" };
    let bytes = bytes.ok_or_else(|| Error::NotKept { run: view.run.id.to_string(), entry: seq.0, side })?;
    let mut response = of_type(bytes, "application/octet-stream");
    response.headers_mut().insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    Ok(response)
}

/// Answers with what changed in the run's files at an entry: see [`RunFiles`](crate::door::RunFiles). Nothing where no files
/// are kept, or this process cannot read them.
pub async fn files(asked: ApiRequest) -> Answered {
    let (view, entry) = named(&asked).await?;
    let (id, seq) = (view.run.id.clone(), entry.seq);
    let Some(files) = asked.host.config.files.clone() else {
        return json(&json!({ "run": id, "entry": seq, "changes": [], "more": 0 }));
    };
    let failed = move |e| store::Error::Io { why: format!("the files of entry {seq} are not read: {e}") };
    let (changes, more) =
        asked.read(move |store| files.changes(store, &view, &entry).map_err(failed)).await?;
    json(&json!({ "run": id, "entry": seq, "changes": changes, "more": more }))
}
