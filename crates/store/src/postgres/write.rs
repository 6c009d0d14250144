//! Statements that write, and how they are sent: joined into few, and all of a group in one round trip.
//!
//! Each statement costs the server some ten microseconds beside its work: a message to read, one to flush, a plan to
//! start. So statements that depend on none of the others become one, whose parts are its `WITH` queries.
//!
//! The text of the one statement of a small group is some kilobytes long, and the steps of a run differ in their values only:
//! it is written once for each form of a group ([`Wording`]).

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::HashMap,
    fmt::Write as _,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use futures_util::future::{MaybeDone, join, join_all, maybe_done};

use super::{
    locks::Locks,
    memory::{NUMBER, Place, Table},
    schema::SchemaName,
    statement::{Ask as _, MOST, Named, Param},
    time::NOW,
};
use crate::rows::Cell;

/// Number of rows for [`Statement::writes`]: one.
pub const ONE_ROW: &str = "1";

/// Number of rows for [`Statement::writes`]: one for each element of the arrays that the statement binds.
pub const ROW_OF_EACH: &str = "cardinality($1)";

/// Statement that writes, with the values that it binds.
pub struct Statement<'a> {
    pub sql: Cow<'static, str>,
    /// Number of rows that it must write, as SQL over its parameters; `None` if any number will do.
    ///
    /// A statement that writes another number fails, by a division by zero: the COMMIT is sent right behind it, before
    /// its sender could look at the number.
    pub writes: Option<&'static str>,
    /// Whether neither it nor the other statements of its group see what the other wrote, so that they may run as one.
    pub joins: bool,
    pub values: Values<'a>,
    /// The one row that it updates, which its text names at the end; `None` for any other statement.
    pub row: Option<Place>,
}

impl<'a> Statement<'a> {
    /// Makes a statement that may join others and write any number of rows.
    pub fn new(sql: Cow<'static, str>, values: Values<'a>) -> Statement<'a> {
        Statement { sql, writes: None, joins: true, values, row: None }
    }
}

pub enum Values<'a> {
    One(Vec<Cell<'a>>),
    /// An array for each parameter.
    Many(Vec<Vec<Cell<'a>>>),
}

impl Values<'_> {
    pub fn params(&self) -> Vec<Param<'_>> {
        match self {
            Values::One(cells) => cells.iter().map(Cell::param).collect(),
            Values::Many(arrays) => {
                arrays.iter().filter_map(|array| Some((array as _, array.first()?.array_type()))).collect()
            }
        }
    }
}

/// Statement to be sent, with its parameters.
struct Sent<'a> {
    sql: String,
    params: Vec<Param<'a>>,
}

impl<'a> Sent<'a> {
    /// Joins statements into one.
    fn of(statements: &'a [Statement<'a>]) -> Sent<'a> {
        let params: Vec<Vec<Param<'a>>> = statements.iter().map(|one| one.values.params()).collect();
        let parts = statements.iter().zip(&params);
        let parts =
            parts.map(|(one, params)| Part { sql: &one.sql, writes: one.writes, values: params.len() });
        let (parts, counts) = joined(parts, 0);
        let sql = match statements {
            [one] if one.writes.is_none() => one.sql.clone().into_owned(),
            _ if counts.is_empty() => format!("WITH {parts} SELECT 1"),
            _ => format!("WITH {parts} SELECT 1 / ({counts})::int"),
        };
        Sent { sql, params: params.concat() }
    }

    async fn run(&self, client: &Named) -> Result<(), tokio_postgres::Error> {
        client.execute(&self.sql, &self.params).await.map(drop)
    }
}

/// Statement as the query of a `WITH`.
pub struct Part<'a> {
    pub sql: &'a str,
    /// As [`Statement::writes`].
    pub writes: Option<&'static str>,
    /// Number of values that it binds.
    pub values: usize,
}

/// Returns the queries of a `WITH`, and the condition that each has written its rows: nothing if any number will do. Their
/// parameters follow on `bound` others.
pub fn joined<'a>(all: impl Iterator<Item = Part<'a>>, mut bound: usize) -> (String, String) {
    let (mut parts, mut counts) = (String::new(), String::new());
    for (i, part) in all.enumerate() {
        let (sql, returning) = (shifted(part.sql, bound), part.writes.map_or("", |_| " RETURNING 1"));
        let comma = if i == 0 { "" } else { ", " };
        let _ = write!(parts, "{comma}written_{i} AS ({sql}{returning})");
        if let Some(count) = part.writes {
            let and = if counts.is_empty() { "" } else { " AND " };
            let _ = match count {
                // An update by a key: it writes one row or none.
                ONE_ROW => write!(counts, "{and}EXISTS (SELECT FROM written_{i})"),
                _ => write!(counts, "{and}(SELECT count(*) FROM written_{i}) = {}", shifted(count, bound)),
            };
        }
        bound += part.values;
    }
    (parts, counts)
}

/// Returns `sql` with `by` added to the numbers of its parameters.
pub fn shifted(sql: &str, by: usize) -> String {
    let mut pieces = sql.split('$');
    let mut all = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find(|c: char| !c.is_ascii_digit()).unwrap_or(piece.len());
        let (number, rest) = piece.split_at(end);
        let number = number.parse::<usize>().map_or_else(|_| number.to_owned(), |n| (n + by).to_string());
        all.extend(["$", &number, rest]);
    }
    all
}

/// Failure to run statements and the command that is sent right behind them.
pub enum Failed {
    /// A statement could not be sent; nor was anything after it.
    Unsent(tokio_postgres::Error),
    /// A statement failed. PostgreSQL answers the COMMIT behind it with success, and rolls the transaction back.
    Statement(tokio_postgres::Error),
    /// All statements were done, and the command after them failed.
    Last(tokio_postgres::Error),
}

/// Request to the database, which is sent when it is first polled.
pub type Request<'a> = Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + 'a>>;

/// Sends `before`, runs the statements, then `last` behind them, all in one round trip. The same round trip prepares the
/// statements that were sent without a name so far.
pub async fn run(
    client: &Named,
    before: Vec<Request<'_>>,
    statements: &[Statement<'_>],
    last: &str,
) -> Result<(), Failed> {
    let sent: Vec<Sent<'_>> = statements.chunk_by(|a, b| a.joins && b.joins).map(Sent::of).collect();
    let mut before: Vec<_> = before.into_iter().map(|one| Box::pin(maybe_done(one))).collect();
    let mut all: Vec<_> = sent.iter().map(|one| Box::pin(maybe_done(one.run(client)))).collect();
    for one in &mut before {
        sent_whole(one.as_mut()).await?;
    }
    let mut preparing: Vec<_> = client.preparing().map(|one| Box::pin(maybe_done(one))).collect();
    for one in &mut preparing {
        send(one.as_mut()).await;
    }
    for one in &mut all {
        sent_whole(one.as_mut()).await?;
    }
    let mut end = pin!(maybe_done(client.client.batch_execute(last)));
    send(end.as_mut()).await;
    for one in before {
        done(one).await.map_err(Failed::Statement)?;
    }
    for one in preparing {
        done(one).await.map_err(Failed::Statement)?;
    }
    for one in all {
        done(one).await.map_err(Failed::Statement)?;
    }
    end.as_mut().await;
    end.take_output().unwrap_or(Ok(())).map_err(Failed::Last)
}

/// Sends a request that is a transaction by itself. The same round trip prepares the statements that were sent without a
/// name so far: a failure of that is none of the request's, which may be committed.
pub async fn run_alone(client: &Named, request: Request<'_>) -> Result<(), Failed> {
    let mut request = Box::pin(maybe_done(request));
    sent_whole(request.as_mut()).await?;
    let preparing = join_all(client.preparing());
    let (done, _) = join(done(request), preparing).await;
    done.map_err(Failed::Statement)
}

/// Sends a request. One that fails here was not sent: a COMMIT would make the rest of the group durable without it.
async fn sent_whole<F>(mut request: Pin<&mut MaybeDone<F>>) -> Result<(), Failed>
where
    F: Future<Output = Result<(), tokio_postgres::Error>>,
{
    send(request.as_mut()).await;
    match request.as_mut().output_mut() {
        Some(Err(_)) => match request.take_output() {
            Some(Err(e)) => Err(Failed::Unsent(e)),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

async fn done<F>(mut statement: Pin<Box<MaybeDone<F>>>) -> Result<(), tokio_postgres::Error>
where
    F: Future<Output = Result<(), tokio_postgres::Error>>,
{
    statement.as_mut().await;
    statement.as_mut().take_output().unwrap_or(Ok(()))
}

/// Polls a statement once. After that the statement has been sent, or has failed.
async fn send(mut statement: Pin<&mut impl Future>) {
    poll_fn(|context| {
        let _ = statement.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

/// Expressions that fail a statement where they are reached: a row is not as remembered, and the server's connection is
/// another session's. They are of no constants, which would be computed as the statement is planned.
const STALE: &str = "(txid_current() / 0)";
const ELSEWHERE: &str = "sqrt(-txid_current()::float8)::bigint";

/// Form of a group: all that the text of its statement depends on.
///
/// The text binds the token; both halves of each locked part's key; the time and how far it may be off; key and version of
/// each row that is checked; and the values of each write, with the version of the row that it updates.
#[derive(PartialEq, Eq, Hash)]
pub struct Wording {
    pub is_synced: bool,
    /// Number of parts that are locked, beside the store itself.
    pub parts: usize,
    /// Tables of the rows that are checked and not written.
    pub checked: Vec<Table>,
    pub written: Vec<Written>,
}

/// Write of a group, with the number of values that it binds.
#[derive(PartialEq, Eq, Hash)]
pub struct Written {
    pub sql: Cow<'static, str>,
    pub writes: Option<&'static str>,
    pub values: usize,
    /// Whether it updates its row only if that has a version, which is bound behind the values.
    pub is_checked: bool,
}

/// Texts that a session has sent.
#[derive(Default)]
pub struct Wordings(RefCell<HashMap<Wording, Arc<str>>>);

impl Wordings {
    pub fn text(&self, wording: Wording, schema: &SchemaName) -> Arc<str> {
        let mut texts = self.0.borrow_mut();
        if let Some(text) = texts.get(&wording) {
            return text.clone();
        }
        if texts.len() >= MOST {
            texts.clear();
        }
        let text: Arc<str> = wording.text(schema).into();
        texts.insert(wording, text.clone());
        text
    }
}

impl Wording {
    /// Writes the statement: a CASE, which takes its conditions in order, and a query of the WITH runs when its rows are
    /// counted, or at the end.
    fn text(&self, schema: &SchemaName) -> String {
        let mut bound = 0;
        let mut next = || {
            bound += 1;
            format!("${bound}")
        };
        let is_ours = format!("coalesce(current_setting('outlast_session.token', true), '') = {}", next());
        // As `SETTINGS` have it. What else they set, the session began with.
        let is_synced = match self.is_synced {
            true => {
                "current_setting('synchronous_commit') <> 'off' OR set_config('synchronous_commit', 'on', true) <> ''"
            }
            false => "set_config('synchronous_commit', 'off', true) <> ''",
        };
        let mut steps = vec![(is_ours, ELSEWHERE), (is_synced.to_owned(), STALE)];
        // Locks come first of all and in their order, as in `Locks`.
        steps.push((Locks::beside_others(schema), STALE));
        for _ in 0..self.parts {
            steps.push((format!("pg_advisory_xact_lock({}, {}) IS NOT NULL", next(), next()), STALE));
        }
        steps.push((format!("abs({NOW} - {}) <= {}", next(), next()), STALE));
        for table in &self.checked {
            let found = table.version(next(), &mut next);
            steps.push((format!("({found} FOR NO KEY UPDATE) = {}", next()), STALE));
        }
        let written: Vec<(String, usize)> = self.written.iter().map(Written::with_check).collect();
        let parts = self.written.iter().zip(&written);
        let parts = parts.map(|(of, (sql, values))| Part { sql, writes: of.writes, values: *values });
        let (parts, counts) = joined(parts, bound);
        let counts = if counts.is_empty() { "true" } else { &counts };
        let whole =
            steps.iter().rev().fold(format!("{NUMBER} / ({counts})::int"), |rest, (step, otherwise)| {
                format!("CASE WHEN {step} THEN {rest} ELSE {otherwise} END")
            });
        format!("WITH {parts} SELECT {whole}")
    }
}

impl Written {
    /// Returns the statement, and the number of all values that it binds.
    ///
    /// An update that has waited for another looks at the version once more, as the other left it.
    fn with_check(&self) -> (String, usize) {
        let (mut sql, mut values) = (self.sql.clone().into_owned(), self.values);
        if self.is_checked {
            values += 1;
            let _ = write!(sql, " AND xmin::text::bigint = ${values}");
        }
        (sql, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(sql: &str, writes: Option<&'static str>, values: &[i64]) -> Statement<'static> {
        let values = Values::One(values.iter().map(|value| Cell::Int(Some(*value))).collect());
        Statement { writes, ..Statement::new(sql.to_owned().into(), values) }
    }

    #[test]
    fn statements_are_joined_into_one_that_fails_unless_each_writes_its_rows() {
        let insert = || statement("INSERT INTO t VALUES ($1, $2)", None, &[1, 2]);
        let update = || statement("UPDATE u SET a = $2 WHERE no = $1", Some(ONE_ROW), &[3, 4]);
        let sql = |statements: &[Statement<'_>]| Sent::of(statements).sql;
        assert_eq!(sql(&[insert()]), "INSERT INTO t VALUES ($1, $2)");
        let alone = "WITH written_0 AS (UPDATE u SET a = $2 WHERE no = $1 RETURNING 1) \
                     SELECT 1 / (EXISTS (SELECT FROM written_0))::int";
        assert_eq!(sql(&[update()]), alone);
        let each = Statement { writes: Some(ROW_OF_EACH), ..update() };
        let all = [insert(), update(), each];
        let joined = "WITH written_0 AS (INSERT INTO t VALUES ($1, $2)), \
                      written_1 AS (UPDATE u SET a = $4 WHERE no = $3 RETURNING 1), \
                      written_2 AS (UPDATE u SET a = $6 WHERE no = $5 RETURNING 1) \
                      SELECT 1 / (EXISTS (SELECT FROM written_1) AND \
                      (SELECT count(*) FROM written_2) = cardinality($5))::int";
        assert_eq!(sql(&all), joined);
        assert_eq!(Sent::of(&all).params.len(), 6);
        assert_eq!(shifted("$1, $12 $", 10), "$11, $22 $");
    }
}
