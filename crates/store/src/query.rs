//! Reads of committed rows: the text, the parameters and the row function of each question, once for both databases,
//! which only bind them ([`Database`]).

pub mod state;

use std::borrow::Cow;

use outlast_core::{
    envelope::{BudgetView, Envelope, unit::MOST_PER_CALL},
    events::delivery::Delivery,
    journal::{Entry, Role, ledger::DAY},
    run::{Attempt, Instance},
    store::{
        Answer, ApprovalFilter, Error, INLINE_VALUE, LedgerLine, Question, RunFilter, Sought, WHOLE_VALUE,
    },
    words::Micros,
};

use crate::{
    rows::{Cell, Column, Dialect, Record, Stored as _, Write},
    tables::{
        APPROVAL, CALL, DONE, FAILED, ITEM, ITEM_ROW, LIVE, OPEN, STEP, STEP_ROW, UNKNOWN, adding,
        budget_views, run_views,
    },
};

/// Parameter of a query, kept for a thread that reads for its caller.
pub enum Value {
    Int(i64),
    Text(String),
    Name(String),
    Blob(Vec<u8>),
}

impl Value {
    pub fn cell(&self) -> Cell<'_> {
        match self {
            Value::Int(value) => Cell::Int(Some(*value)),
            Value::Text(text) => Cell::Text(Some(text.into())),
            Value::Name(name) => Cell::Name(Some(name)),
            Value::Blob(bytes) => Cell::Blob(Some(bytes)),
        }
    }
}

use Value::{Int, Name, Text};

/// Statement that reads rows, with its parameters in the order of their numbers.
pub struct Query {
    pub text: Cow<'static, str>,
    pub values: Vec<Value>,
    /// Whether it is a page of a large table, all of it behind one index.
    pub is_page: bool,
}

impl Query {
    fn new(text: impl Into<Cow<'static, str>>, values: impl Into<Vec<Value>>) -> Query {
        Query { text: text.into(), values: values.into(), is_page: false }
    }

    fn page(self) -> Query {
        Query { is_page: true, ..self }
    }
}

/// A database that runs queries.
pub trait Database {
    const DIALECT: Dialect;

    fn rows<T: Record>(&self, query: Query) -> Result<Vec<T>, Error>;

    fn row<T: Record>(&self, query: Query) -> Result<Option<T>, Error> {
        Ok(self.rows(query)?.into_iter().next())
    }

    /// Answers the questions for which the databases have rows of their own shape: stored bytes, the time.
    fn own_answer(&self, question: &Question) -> Result<Answer, Error>;
}

/// Answers a question from the rows of a database.
pub fn answer<D: Database>(db: &D, question: &Question) -> Result<Answer, Error> {
    let d = D::DIALECT;
    let (o, p) = (d.schema(), d.mark());
    let by_no = || format!("WHERE no = {p}1");
    Ok(match question {
        Question::RunNo { id } => {
            let text = format!("SELECT no FROM {o}runs WHERE id = {p}1");
            Answer::RunNo(db.row(Query::new(text, [Text(id.to_string())]))?)
        }
        Question::Run { no } => Answer::Run(db.row(Query::new(run_views(d, &by_no()), [Int(no.0)]))?),
        Question::Runs { filter } => Answer::Runs(db.rows(runs(d, filter))?),
        Question::Statuses {} => {
            let by = d.indexed_by("runs_by_status");
            let text = format!("SELECT status, count(*) FROM {o}runs {by}GROUP BY status ORDER BY status");
            Answer::Statuses(db.rows(Query::new(text, []))?)
        }
        Question::Approvals { filter } => {
            let mut values = vec![limit(filter.limit)];
            values.extend(filter.run.map(|run| Int(run.0)));
            Answer::Approvals(db.rows(Query::new(approvals(d, filter), values))?)
        }
        Question::Envelope { no } => {
            Answer::Envelope(db.row(Query::new(d.select::<Envelope>(&by_no()), [Int(no.0)]))?)
        }
        Question::Budgets {} => {
            let mut views: Vec<BudgetView> = db.rows(Query::new(budget_views(d), []))?;
            views.retain(|view| !view.budget.removed);
            Answer::Budgets(views)
        }
        Question::Attempts { run } => {
            let text = d.select::<Attempt>(&format!("WHERE run_no = {p}1 ORDER BY no"));
            Answer::Attempts(db.rows(Query::new(text, [Int(run.0)]))?)
        }
        Question::Entry { run, seq } => {
            let text = d.select::<Entry>(&format!("WHERE run_no = {p}1 AND seq = {p}2"));
            Answer::Entry(db.row(Query::new(text, [Int(run.0), Int(seq.0)]))?)
        }
        Question::Entries { run, after, limit: most } => {
            let rest = format!("WHERE run_no = {p}1 AND seq > {p}2 ORDER BY seq LIMIT {p}3");
            let values = [Int(run.0), Int(after.0), limit(*most)];
            Answer::Entries(db.rows(Query::new(d.select::<Entry>(&rest), values).page())?)
        }
        Question::Items { run, page } => {
            let mut values = vec![Int(run.0), Int(page.after.0), Int(page.upto.0), limit(page.limit)];
            if page.values {
                values.extend([Int(Role::Value.code()), Int(WHOLE_VALUE)]);
                Answer::Items(db.rows(Query::new(items(d, true), values).page())?)
            } else {
                let rows = db.rows(Query::new(items(d, false), values).page())?;
                Answer::Items(rows.into_iter().map(|row| (row, None)).collect())
            }
        }
        Question::Steps { run, after, limit: most } => {
            let values = [Int(run.0), Int(after.0), limit(*most), Int(Role::Value.code()), Int(INLINE_VALUE)];
            Answer::Steps(db.rows(Query::new(steps(d), values).page())?)
        }
        Question::Newest { run, sought } => {
            let mut values =
                vec![Int(run.0), Int(sought.kind.code()), Name(sought.key.clone()), Int(sought.upto.0)];
            values.extend(sought.scope.clone().map(Name));
            Answer::Newest(db.row(Query::new(newest(d, sought), values))?)
        }
        Question::Events { query } => {
            let (mark, behind, order) = marks(d);
            let of_run = if query.run.is_some() { format!("run_no = {p}4 AND ") } else { String::new() };
            let by = if query.run.is_some() { d.indexed_by("events_of_runs") } else { String::new() };
            let text = format!(
                "SELECT {mark}, at, run_no, seq, kind, about FROM {o}events {by}WHERE {of_run}{behind} \
                 ORDER BY {order} LIMIT {p}3"
            );
            let mut values = vec![Int(query.after.transaction), Int(query.after.no), limit(query.limit)];
            values.extend(query.run.map(|run| Int(run.0)));
            Answer::Events(db.rows(Query::new(text, values))?)
        }
        Question::NewestEvent {} => {
            let (mark, _, order) = marks(d);
            let newest = order.replace(',', " DESC,");
            let text = format!("SELECT {mark} FROM {o}events ORDER BY {newest} DESC LIMIT 1");
            Answer::NewestEvent(db.row(Query::new(text, []))?.unwrap_or_default())
        }
        Question::Deliveries {} => {
            let text = d.select::<Delivery>("ORDER BY name");
            Answer::Deliveries(db.rows(Query::new(text, []))?)
        }
        Question::LiveInstances {} => {
            let text = d.select::<Instance>(&format!("WHERE life = {LIVE} ORDER BY no"));
            Answer::LiveInstances(db.rows(Query::new(text, []))?)
        }
        Question::Instance { no } => {
            Answer::Instance(db.row(Query::new(d.select::<Instance>(&by_no()), [Int(no.0)]))?)
        }
        Question::Ledger { since, until } => Answer::Ledger(ledger(db, *since, *until)?),
        Question::Sums { run } => {
            let text = d.select::<LedgerLine>(&format!("WHERE run_no = {p}1"));
            Answer::Sums(LedgerLine::sum(db.rows::<LedgerLine>(Query::new(text, [Int(run.0)]))?))
        }
        Question::TokenKeys {} => {
            let text = format!(
                "SELECT key, value FROM {o}meta WHERE key LIKE 'token_key_%' ORDER BY length(key) DESC, key DESC"
            );
            Answer::TokenKeys(db.rows(Query::new(text, []))?)
        }
        Question::NewestRequest { .. } | Question::Payload { .. } | Question::Now {} => {
            return db.own_answer(question);
        }
        Question::State { .. }
        | Question::StateAt { .. }
        | Question::StateHistory { .. }
        | Question::StateKeys { .. }
        | Question::StateScan { .. }
        | Question::StateEvents { .. }
        | Question::ResumePoint { .. }
        | Question::StatePosition {}
        | Question::Namespace { .. }
        | Question::Namespaces { .. }
        | Question::Agents { .. }
        | Question::TransactionOutcome { .. } => return state::answer(db, question),
    })
}

fn limit(rows: usize) -> Value {
    Int(i64::try_from(rows).unwrap_or(i64::MAX))
}

/// Returns the columns of an event's mark, the condition that an event is behind the mark $1, $2, and the order of
/// marks. An SQLite store has no transactions in its events.
fn marks(d: Dialect) -> (&'static str, &'static str, &'static str) {
    match d {
        Dialect::Sqlite => ("0, no", "no > ?2", "no"),
        Dialect::Postgres | Dialect::PostgresRow => {
            ("transaction, no", "(transaction, no) > ($1, $2)", "transaction, no")
        }
    }
}

fn runs(d: Dialect, filter: &RunFilter) -> Query {
    let mut wanted = String::from("WHERE true");
    let mut values = Vec::new();
    let mut put = |clause: &dyn Fn(usize) -> String, value: Value| {
        values.push(value);
        wanted.extend([" AND ", &clause(values.len())]);
    };
    let p = d.mark();
    if let Some(status) = filter.status {
        put(&|i| format!("status = {p}{i}"), Int(status as i64));
    }
    if let Some(key) = &filter.command_key {
        put(&|i| d.is_name("command_key", i), Name(key.clone()));
    }
    if let Some(before) = filter.before {
        put(&|i| format!("no < {p}{i}"), Int(before.0));
    }
    if let Some(word) = &filter.word {
        put(&|i| of_word(d, &format!("{p}{i}")), Text(as_in_json(word)));
    }
    if filter.jobs {
        wanted.push_str(" AND job IS NOT NULL");
    }
    values.push(limit(filter.limit));
    wanted.push_str(&format!(" ORDER BY no DESC LIMIT {p}{}", values.len()));
    Query::new(run_views(d, &wanted), values)
}

/// Returns the condition that a run's id contains a word, or its name begins with it; `word` is its parameter, as JSON has
/// it. The texts are searched as they are stored: of other runs no row is read and nothing parsed. A word after another
/// `"name"` of a spec lets its run through, too.
fn of_word(d: Dialect, word: &str) -> String {
    let o = d.schema();
    let (ids, names) = (d.contains("id", word), d.contains("spec", &format!("'\"name\":\"' || {word}")));
    format!("no IN (SELECT no FROM {o}runs WHERE {ids} UNION ALL SELECT run_no FROM {o}specs WHERE {names})")
}

/// Returns a text as JSON has it between its quotes.
fn as_in_json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Returns the query for approvals, newest first: it walks an index from its end until it has enough rows. For one run,
/// the index of its entries of a kind is smaller.
pub fn approvals(d: Dialect, filter: &ApprovalFilter) -> String {
    let p = d.mark();
    let open = if filter.open { format!(" AND state = {OPEN}") } else { String::new() };
    let (index, of_run) = match (filter.run, filter.open) {
        (Some(_), _) => ("entries_by_key", format!(" AND run_no = {p}2 AND key IS NOT NULL")),
        (None, true) => ("approvals_open", String::new()),
        (None, false) => ("approvals", String::new()),
    };
    d.select::<Entry>(&format!(
        "{}WHERE kind = {APPROVAL}{open}{of_run} ORDER BY opened_at DESC, run_no DESC, seq DESC LIMIT {p}1",
        d.indexed_by(index)
    ))
}

/// Returns the query for a page of a job's items. The index on the newest entries of items has a page cost its own size,
/// whatever else the journal holds.
pub fn items(d: Dialect, values: bool) -> String {
    let (o, p) = (d.schema(), d.mark());
    let (value, join) = match values {
        true => (format!(", {}", d.value()), d.value_join(5)),
        false => Default::default(),
    };
    format!(
        "SELECT {ITEM_ROW}{value} FROM {o}entries e {}{join} WHERE e.run_no = {p}1 AND e.kind = {ITEM} \
         AND (e.retried_by IS NULL OR e.retried_by > {p}3) AND e.seq > {p}2 AND e.seq <= {p}3 \
         ORDER BY e.seq LIMIT {p}4",
        d.indexed_by("entries_of_items")
    )
}

pub fn steps(d: Dialect) -> String {
    let (o, p) = (d.schema(), d.mark());
    format!(
        "SELECT {STEP_ROW}, {} FROM {o}entries e {} WHERE e.run_no = {p}1 AND e.kind = {STEP} AND e.seq > {p}2 \
         ORDER BY e.seq LIMIT {p}3",
        d.value(),
        d.value_join(4)
    )
}

/// Returns the query for the newest entry of a key. The index has the entries of a key by scope, and those of a scope by
/// number: in any scope, it is the newest of the newest of each, so that a checkpoint which was saved a million times is
/// found as one that was saved twice.
pub fn newest(d: Dialect, sought: &Sought) -> String {
    let (o, p, by) = (d.schema(), d.mark(), d.indexed_by("entries_by_key"));
    let of_key = format!("{by}WHERE run_no = {p}1 AND kind = {p}2 AND {}", d.is_name("key", 3));
    let done = if sought.done { format!(" AND state = {DONE}") } else { String::new() };
    let last = format!("{done} AND seq <= {p}4 ORDER BY seq DESC LIMIT 1");
    if sought.scope.is_some() {
        return d.select::<Entry>(&format!("{of_key} AND {}{last}", d.is_name("scope", 5)));
    }
    let scope = d.indexed("scope");
    let next = |behind: &str| {
        format!("SELECT {scope} AS scope FROM {o}entries {of_key}{behind} ORDER BY {scope} LIMIT 1")
    };
    let (first, next) = (next(""), next(&format!(" AND {scope} > s.scope")));
    let of_scope = format!("SELECT seq FROM {o}entries {of_key} AND {scope} = s.scope{last}");
    d.select::<Entry>(&format!(
        "WHERE run_no = {p}1 AND seq = (WITH RECURSIVE scopes (scope) AS (SELECT scope FROM ({first}) AS f \
         UNION ALL SELECT ({next}) FROM scopes s WHERE s.scope IS NOT NULL) \
         SELECT max(({of_scope})) FROM scopes s)"
    ))
}

/// Number of calls that SQLite sums at a time: what it groups is sorted in memory.
const SUMMED: usize = 1 << 16;

/// Returns the ledger's lines between two times, in the order of runs: whole days from the sums that commits keep, and the
/// calls of the hours before and after these days one by one.
fn ledger<D: Database>(db: &D, since: Micros, until: Micros) -> Result<Vec<LedgerLine>, Error> {
    let (d, p) = (D::DIALECT, D::DIALECT.mark());
    let first = since.0.div_euclid(DAY) + i64::from(since.0.rem_euclid(DAY) > 0);
    let end = until.0.div_euclid(DAY);
    if first >= end {
        return Ok(LedgerLine::sum(of_calls(db, since.0, until.0)?));
    }
    let days = d.select::<LedgerLine>(&format!("WHERE day >= {p}1 AND day < {p}2"));
    let mut lines = of_calls(db, since.0, first * DAY)?;
    lines.extend(db.rows(Query::new(days, [Int(first), Int(end)]))?);
    lines.extend(of_calls(db, end * DAY, until.0)?);
    Ok(LedgerLine::sum(lines))
}

/// Returns lines of the calls opened in `from..until`. The time grows with these calls, whatever else the store holds.
fn of_calls<D: Database>(db: &D, mut from: i64, until: i64) -> Result<Vec<LedgerLine>, Error> {
    let text = ledger_text(D::DIALECT);
    if D::DIALECT != Dialect::Sqlite {
        return db.rows(Query::new(text, [Int(from), Int(until)]));
    }
    let next = format!(
        "SELECT opened_at FROM entries INDEXED BY calls_in_time WHERE kind = {CALL} AND opened_at >= ?1 \
         AND opened_at < ?2 ORDER BY opened_at LIMIT 1 OFFSET {SUMMED}"
    );
    let mut lines = Vec::new();
    while from < until {
        let next: Option<i64> = db.row(Query::new(next.clone(), [Int(from), Int(until)]))?;
        // Calls of one moment are summed together, however many they are.
        let to = next.map_or(until, |next| next.max(from + 1));
        let more = db.rows(Query::new(text.clone(), [Int(from), Int(to)]))?;
        (from, lines) = (to, LedgerLine::sum(lines.into_iter().chain(more)));
    }
    Ok(lines)
}

/// Returns the query for the lines of the calls opened in $1..$2.
pub fn ledger_text(d: Dialect) -> String {
    let p = d.mark();
    let opened = format!(" AND opened_at >= {p}1 AND opened_at < {p}2");
    grouped(&each_call(d, &d.indexed_by("calls_in_time"), &opened))
}

/// Returns the statement that sums the calls of a store whose commits have not done so.
pub fn summing(d: Dialect) -> String {
    let (o, names, calls) = (d.schema(), LedgerLine::NAMES, each_call(d, "", ""));
    match d {
        // Row for row: what SQLite groups is sorted in memory.
        Dialect::Sqlite => format!("INSERT INTO {o}sums ({names}) {calls} {}", adding(d)),
        Dialect::Postgres | Dialect::PostgresRow => {
            format!("INSERT INTO {o}sums ({names}) {}", grouped(&calls))
        }
    }
}

/// Returns the query that sums the lines of a query for [`each_call`]. PostgreSQL adds bigints to a numeric.
fn grouped(calls: &str) -> String {
    let counts = LedgerLine::COLUMNS.iter().filter(|column| column.write == Write::Always);
    let sums: Vec<_> = counts.map(|Column { name, .. }| format!("CAST(sum({name}) AS bigint)")).collect();
    // The limit keeps SQLite from merging the two: what is sorted would hold all of `detail` then.
    format!(
        "SELECT run_no, upstream, model, day, {} FROM ({calls} LIMIT 9223372036854775807) AS calls \
         GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
        sums.join(", ")
    )
}

/// Returns the query for the ledger's line of each call, as [`LedgerLine::of`] has it. `by` names its index.
fn each_call(d: Dialect, by: &str, opened: &str) -> String {
    let (o, least, greatest) = (d.schema(), d.least(), d.greatest());
    let reserved = d.number_at("detail", &["reserved", "0"]);
    let unbacked = d.number_at("detail", &["correction", "unbacked_nano_usd"]);
    // Floor division, also before 1970: a wrong clock is no reason to lose a line. Older stores have calls that were
    // charged more than `MOST_PER_CALL`; their sum would overflow. Unbacked doubt as `Entry::unbacked` has it. A key in
    // quotes is in no text of `detail`, whose quotes are escaped.
    format!(
        "SELECT run_no, upstream, model, \
         (opened_at - ((opened_at % {DAY}) + {DAY}) % {DAY}) / {DAY} AS day, \
         spent_calls AS calls, {least}(spent_tokens, {MOST_PER_CALL}) AS tokens, \
         {least}(spent_cost, {MOST_PER_CALL}) AS spent, \
         CASE WHEN state = {UNKNOWN} THEN {least}(held_cost, {MOST_PER_CALL}) ELSE 0 END AS doubt, \
         CASE WHEN state = {UNKNOWN} THEN {greatest}(coalesce({reserved}, 0) - held_cost, 0) \
         WHEN retried_by IS NOT NULL THEN coalesce({unbacked}, 0) ELSE 0 END AS unbacked, \
         CASE WHEN detail LIKE '%\"unpriced\":\"%' THEN 1 ELSE 0 END AS unpriced, \
         CASE WHEN state = {FAILED} AND spent_cost = 0 THEN spent_calls ELSE 0 END AS unpaid \
         FROM {o}entries {by}WHERE kind = {CALL}{opened}"
    )
}
