//! Columns of each table, in the order in which both databases write and read them.
//!
//! Tables and indexes that both databases have alike, but for the names of their types.

use std::sync::OnceLock;

use bytes::Bytes;
use outlast_core::{
    envelope::{Amounts, Budget, BudgetView, Envelope, Unit},
    events::{self, Event, Mark, delivery::Delivery},
    journal::{Entry, ItemRow, Job, Kind, Payload, State, payload::Codec},
    run::{Attempt, Instance, Lease, Life, Origin, Run, Spec, Status, TokenKey},
    state::Position,
    store::{LedgerLine, RunView, StepRow},
    words::{
        AttemptNo, BudgetNo, EnvelopeNo, Fence, InstanceNo, MatchKey, Micros, OpNo, RunId, RunNo, Seq, Slot,
    },
};

use crate::{
    rows::{
        Cell, Column, Columns, Cursor, Dialect, Json, Read, Record, Stored, Texts, Write, int, json, list,
        maybe_int, maybe_json, maybe_name, name,
    },
    sqlite::payloads,
};

// Stored numbers, written into the text of queries: a partial index is used only if its condition is literal.
pub const CALL: i64 = Kind::Call as i64;
pub const STEP: i64 = Kind::Step as i64;
pub const ITEM: i64 = Kind::Item as i64;
pub const APPROVAL: i64 = Kind::Approval as i64;
pub const OPEN: i64 = State::Open as i64;
pub const DONE: i64 = State::Done as i64;
pub const UNKNOWN: i64 = State::Unknown as i64;
pub const FAILED: i64 = State::Failed as i64;
pub const LIVE: i64 = Life::Live as i64;

macro_rules! stored {
    ($row:ty = $table:literal: $w:ident $n:ident $cell:expr, $($write:ident $name:ident $get:expr,)* $(; $($aside:ident $side:expr,)+)?
     => $cursor:ident $read:block) => {
        impl Stored for $row {
            const TABLE: &'static str = $table;
            const NAMES: &'static str = concat!(stringify!($n) $(, ", ", stringify!($name))*);
            const COLUMNS: &'static [Column<Self>] = &[
                Column { name: stringify!($n), write: Write::$w, cell: $cell },
                $(Column { name: stringify!($name), write: Write::$write, cell: $get },)*
                $($(Column { name: stringify!($aside), write: Write::Aside, cell: $side },)+)?
            ];

            fn texts() -> &'static [OnceLock<Texts>; 3] {
                static TEXTS: [OnceLock<Texts>; 3] = [const { OnceLock::new() }; 3];
                &TEXTS
            }

            fn read<R: Columns>($cursor: &mut Cursor<'_, R>) -> Result<Self, R::Error> $read
        }
    };
}

stored! { Instance = "instances":
    Key no |i| int(i.no.0),
    Always life |i| int(i.life as i64),
    Always heartbeat |i| int(i.heartbeat),
    // The group updates this column last.
    Apart op_counter |i| int(i.op_counter),
    Once registered_at |i| int(i.registered_at.0),
    Always last_seen |i| int(i.last_seen.0),
    Once identity |i| json(&i.identity),
    => row {
        Ok(Instance {
            no: InstanceNo(row.int()?),
            life: row.code("life", |code| LIVES.into_iter().find(|l| *l as i64 == code))?,
            heartbeat: row.int()?,
            op_counter: row.int()?,
            registered_at: Micros(row.int()?),
            last_seen: Micros(row.int()?),
            identity: row.json()?,
        })
    }
}

const LIVES: [Life; 3] = [Life::Live, Life::Dead, Life::Left];

stored! { Run = "runs":
    Key no |r| int(r.no.0),
    Once id |r| Ok(Cell::Text(Some(r.id.as_str().into()))),
    Seldom status |r| int(r.status.code()),
    Once parent |r| maybe_int(r.parent.map(|n| n.0)),
    Once created_at |r| int(r.created_at.0),
    Always began_at |r| maybe_int(r.began_at.map(|t| t.0)),
    Always ended_at |r| maybe_int(r.ended_at.map(|t| t.0)),
    Always next_seq |r| int(r.next_seq.0),
    Always next_attempt |r| int(r.next_attempt.0),
    Always fence |r| int(r.fence.0),
    Always iteration |r| int(r.iteration),
    Always explicit_loops |r| Ok(Cell::Bool(r.explicit_loops)),
    Always answers |r| int(r.answers),
    Always closed |r| int(r.closed),
    Always stop_requested |r| Ok(Cell::Bool(r.stop_requested)),
    Always replayed |r| int(r.replayed),
    Always saved_nano_usd |r| int(r.saved_nano_usd),
    Once charges |r| json(&r.charges),
    // Written, as its command's key, with the spec of a run that is amended.
    Apart policy |r| json(&r.policy),
    Always halt |r| maybe_json(r.halt.as_ref()),
    Always error |r| maybe_name(&r.error),
    Apart command_key |r| maybe_name(&r.command_key),
    // Kept apart: the name is indexed and never changes, the counts change with each item.
    Once job |r| Ok(Cell::Name(r.job.as_ref().map(|j| j.name.as_str()))),
    Always counts |r| maybe_json(r.job.as_ref().map(|j| &j.counts)),
    Once origins |r| list(&r.origins),
    Always turns |r| maybe_json(r.turns.as_ref()),
    Always wake_at |r| maybe_int(r.wake_at.map(|t| t.0)),
    Seldom budgets |r| list(&r.budgets),
    Always approvals |r| maybe_json(r.approvals.as_ref()),
    Always own |r| json(&r.own),
    => row {
        Ok(Run {
            no: RunNo(row.int()?),
            id: RunId::new(row.text()?).map_err(|e| row.bad(e))?,
            status: row.code("status", Status::from_code)?,
            parent: row.maybe_int()?.map(RunNo),
            created_at: Micros(row.int()?),
            began_at: row.maybe_int()?.map(Micros),
            ended_at: row.maybe_int()?.map(Micros),
            next_seq: Seq(row.int()?),
            next_attempt: AttemptNo(row.int()?),
            fence: Fence(row.int()?),
            iteration: row.int()?,
            explicit_loops: row.bool()?,
            answers: row.int()?,
            closed: row.int()?,
            stop_requested: row.bool()?,
            replayed: row.int()?,
            saved_nano_usd: row.int()?,
            charges: {
                let charges: Vec<EnvelopeNo> = row.json()?;
                if charges.is_empty() {
                    return Err(row.bad("a run has an envelope"));
                }
                charges.into()
            },
            policy: row.json()?,
            halt: row.maybe_json()?,
            error: row.maybe_name()?.map(str::to_owned),
            command_key: row.maybe_name()?.map(str::to_owned),
            job: match (row.maybe_name()?.map(str::to_owned), row.maybe_json()?) {
                (None, _) => None,
                (Some(name), counts) => Some(Box::new(Job { name, counts: row.wanted(counts)? })),
            },
            origins: row.list::<Origin>()?,
            turns: row.maybe_json()?,
            wake_at: row.maybe_int()?.map(Micros),
            budgets: row.list::<BudgetNo>()?,
            approvals: row.maybe_json()?,
            own: row.json()?,
        })
    }
}

stored! { Budget = "budgets":
    Key no |b| int(b.no.0),
    Always budget |b| json(b),
    => row {
        row.step();
        row.json()
    }
}

stored! { Envelope = "envelopes":
    Key no |e| int(e.no.0),
    Once owner |e| json(&e.owner),
    Always limits |e| json(&e.limits),
    Always reserved_cost |e| int(e.reserved.cost()),
    Always reserved_tokens |e| int(e.reserved.tokens()),
    Always reserved_calls |e| int(e.reserved[Unit::Calls]),
    Always doubt_cost |e| int(e.doubt.cost()),
    Always doubt_tokens |e| int(e.doubt.tokens()),
    Always spent_cost |e| int(e.spent.cost()),
    Always spent_tokens |e| int(e.spent.tokens()),
    Always spent_calls |e| int(e.spent[Unit::Calls]),
    Always spent_loops |e| int(e.spent[Unit::Loops]),
    Always spent_active_ms |e| int(e.spent[Unit::ActiveMs]),
    Always spent_restarts |e| int(e.spent[Unit::Restarts]),
    => row {
        let mut e = Envelope::new(EnvelopeNo(row.int()?), row.json()?, row.json()?);
        e.reserved = row.amounts()?;
        e.doubt = Amounts::of(row.int()?, row.int()?);
        e.spent = row.amounts()?;
        for unit in [Unit::Loops, Unit::ActiveMs, Unit::Restarts] {
            e.spent[unit] = row.int()?;
        }
        Ok(e)
    }
}

stored! { Attempt = "attempts":
    Key run_no |a| int(a.run.0),
    Key no |a| int(a.no.0),
    Once slot |a| int(a.slot.0),
    Once label |a| maybe_name(&a.label),
    Once instance |a| maybe_int(a.instance.map(|n| n.0)),
    Once fence |a| maybe_int(a.fence.map(|n| n.0)),
    Once iteration |a| int(a.iteration),
    Once started_at |a| int(a.started_at.0),
    Always ended_at |a| maybe_int(a.ended_at.map(|t| t.0)),
    Always exit |a| maybe_json(a.exit.as_ref()),
    Always active_ms |a| int(a.active_ms),
    Always untaken |a| int(a.untaken),
    Always receiving |a| list(&a.receiving),
    Always diverged |a| maybe_int(a.diverged.map(|n| n.0)),
    Always diverged_untaken |a| int(a.diverged_untaken),
    Once closed_before |a| int(a.closed_before),
    => row {
        Ok(Attempt {
            run: RunNo(row.int()?),
            no: AttemptNo(row.int()?),
            slot: Slot(row.int()?),
            label: row.maybe_name()?.map(str::to_owned),
            instance: row.maybe_int()?.map(InstanceNo),
            fence: row.maybe_int()?.map(Fence),
            iteration: row.int()?,
            started_at: Micros(row.int()?),
            ended_at: row.maybe_int()?.map(Micros),
            exit: row.maybe_json()?,
            active_ms: row.int()?,
            untaken: row.int()?,
            receiving: row.list()?.to_vec(),
            diverged: row.maybe_int()?.map(Seq),
            diverged_untaken: row.int()?,
            closed_before: row.int()?,
        })
    }
}

stored! { Lease = "leases":
    Key run_no |x| int(x.run.0),
    Key slot |x| int(x.slot.0),
    Always instance |x| int(x.instance.0),
    Always fence |x| int(x.fence.0),
    => row {
        Ok(Lease {
            run: RunNo(row.int()?),
            slot: Slot(row.int()?),
            instance: InstanceNo(row.int()?),
            fence: Fence(row.int()?),
        })
    }
}

stored! { Entry = "entries":
    Key run_no |e| int(e.run.0),
    Key seq |e| int(e.seq.0),
    Once kind |e| int(e.kind.code()),
    Always state |e| int(e.state.code()),
    Always attempt |e| int(e.attempt.0),
    Always instance |e| maybe_int(e.instance.map(|n| n.0)),
    Always opened_by |e| int(e.opened_by.0),
    Once scope |e| name(&e.scope),
    Once key |e| maybe_name(&e.key),
    Once match_key |e| Ok(Cell::Blob(e.match_key.as_ref().map(|k| &k.0[..]))),
    Once opened_at |e| int(e.opened_at.0),
    Always closed_at |e| maybe_int(e.closed_at.map(|t| t.0)),
    Always held_cost |e| int(e.held.cost()),
    Always held_tokens |e| int(e.held.tokens()),
    Always held_calls |e| int(e.held[Unit::Calls]),
    Always spent_cost |e| int(e.spent.cost()),
    Always spent_tokens |e| int(e.spent.tokens()),
    Always spent_calls |e| int(e.spent[Unit::Calls]),
    Always delivered_to |e| maybe_int(e.delivered_to.map(|n| n.0)),
    Always delivered_count |e| int(i64::from(e.delivered_count)),
    Always taken |e| maybe_json(e.taken.as_ref()),
    Always retried_by |e| maybe_int(e.retried_by.map(|n| n.0)),
    Always replayable |e| Ok(Cell::Bool(e.replayable)),
    Always detail detail,
    ; model |e| Ok(Cell::Name(e.call.as_ref().map(|c| c.model.as_str()))),
    upstream |e| Ok(Cell::Name(e.call.as_ref().map(|c| c.upstream.as_str()))),
    => row {
        let mut entry = Entry {
            run: RunNo(row.int()?),
            seq: Seq(row.int()?),
            kind: row.code("kind", Kind::from_code)?,
            state: row.code("state", State::from_code)?,
            attempt: AttemptNo(row.int()?),
            instance: row.maybe_int()?.map(InstanceNo),
            opened_by: OpNo(row.int()?),
            scope: row.name()?.into(),
            key: row.maybe_name()?.map(str::to_owned),
            match_key: {
                let key = row.maybe_blob()?.map(<[u8; 16]>::try_from).transpose();
                key.map_err(|_| row.bad("a match key has 16 bytes"))?.map(MatchKey)
            },
            opened_at: Micros(row.int()?),
            closed_at: row.maybe_int()?.map(Micros),
            held: row.amounts()?,
            spent: row.amounts()?,
            delivered_to: row.maybe_int()?.map(AttemptNo),
            delivered_count: row.small()?,
            taken: row.maybe_json()?,
            retried_by: row.maybe_int()?.map(Seq),
            replayable: row.bool()?,
            ..Entry::default()
        };
        match entry.kind {
            Kind::Call => entry.call = row.maybe_json()?,
            Kind::Item => entry.item = row.maybe_json()?,
            Kind::Approval => entry.approval = row.maybe_json()?,
            Kind::Tool => entry.tool = row.maybe_json()?,
            _ => entry.step = row.maybe_json()?,
        }
        Ok(entry)
    }
}

stored! { LedgerLine = "sums":
    Key run_no |l| int(l.run.0),
    Key upstream |l| name(&l.upstream),
    Key model |l| name(&l.model),
    Key day |l| int(l.day),
    Always calls |l| int(l.calls),
    Always tokens |l| int(l.tokens),
    Always spent |l| int(l.spent_nano_usd),
    Always doubt |l| int(l.doubt_nano_usd),
    Always unbacked |l| int(l.unbacked_nano_usd),
    Always unpriced |l| int(l.unpriced_calls),
    Always unpaid |l| int(l.unpaid_calls),
    => row {
        Ok(LedgerLine {
            run: RunNo(row.int()?),
            upstream: row.name()?.to_owned(),
            model: row.name()?.to_owned(),
            day: row.int()?,
            calls: row.int()?,
            tokens: row.int()?,
            spent_nano_usd: row.int()?,
            doubt_nano_usd: row.int()?,
            unbacked_nano_usd: row.int()?,
            unpriced_calls: row.int()?,
            unpaid_calls: row.int()?,
        })
    }
}

/// Returns the end of an INSERT of ledger lines that adds them to those that are there.
pub fn adding(d: Dialect) -> String {
    let counts = LedgerLine::COLUMNS.iter().filter(|column| column.write == Write::Always);
    let added: Vec<_> =
        counts.map(|Column { name, .. }| format!("{name} = sums.{name} + excluded.{name}")).collect();
    format!("ON CONFLICT ({}) DO UPDATE SET {}", line_key(d), added.join(", "))
}

/// Returns the columns by which a ledger line is unique. Names may be longer than PostgreSQL's indexes take.
pub fn line_key(d: Dialect) -> String {
    format!("run_no, day, {}, {}", d.indexed("upstream"), d.indexed("model"))
}

stored! { Delivery = "deliveries":
    Key name |d| name(&d.name),
    Always version |d| int(d.version),
    Always delivery |d| json(d),
    => row {
        row.next += 2;
        row.json()
    }
}

/// Returns the JSON detail that depends on the entry's kind.
fn detail(e: &Entry) -> Json<Cell<'_>> {
    if let Some(approval) = &e.approval {
        return json(approval);
    }
    if let Some(tool) = &e.tool {
        return json(tool);
    }
    match (&e.call, &e.item) {
        (Some(call), _) => json(call),
        (None, Some(item)) => json(item),
        (None, None) => maybe_json(e.step.as_ref()),
    }
}

/// Returns the query for runs with their specs and envelopes, newest first; `wanted` selects the runs.
pub fn run_views(d: Dialect, wanted: &str) -> String {
    let (o, run, envelope) = (d.schema(), Run::NAMES, Envelope::NAMES);
    let spec = d.lookup("specs", "s", "s.run_no = r.no");
    let own = d.lookup("envelopes", "e", &format!("e.no = {}", d.number_at("r.charges", &["0"])));
    format!(
        "SELECT r.*, s.spec, e.{envelope} FROM (SELECT {run} FROM {o}runs {wanted}) r {spec} {own} ORDER BY r.no DESC"
    )
}

impl Record for RunView {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<RunView, R> {
        let run = Run::read(row)?;
        let spec = row.maybe_json()?.ok_or_else(|| row.bad(format!("run {} has no spec", run.id)))?;
        let envelope =
            maybe_envelope(row)?.ok_or_else(|| row.bad(format!("run {} has no envelope", run.id)))?;
        Ok(RunView { run, spec, envelope })
    }
}

/// Returns the query for the named budgets with the envelopes of their newest windows, in the order of their creation.
pub fn budget_views(d: Dialect) -> String {
    let (o, budget, envelope) = (d.schema(), Budget::NAMES, Envelope::NAMES);
    let no = d.number_at("b.budget", &["window", "envelope"]);
    let window = d.lookup("envelopes", "e", &format!("e.no = {no}"));
    format!("SELECT b.{budget}, e.{envelope} FROM {o}budgets b {window} ORDER BY b.no")
}

impl Record for BudgetView {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<BudgetView, R> {
        Ok(BudgetView { budget: Budget::read(row)?, envelope: maybe_envelope(row)? })
    }
}

/// Reads a joined envelope; `None` if its columns are NULL.
fn maybe_envelope<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Option<Envelope>, R> {
    let no = Cursor::at(row.row, row.next).maybe_int()?;
    no.map(|_| Envelope::read(row)).transpose()
}

impl Record for Event {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Event, R> {
        Ok(Event {
            mark: Mark::of_row(row)?,
            at: Micros(row.int()?),
            run: row.maybe_int()?.map(RunNo),
            seq: row.maybe_int()?.map(Seq),
            kind: {
                let name = row.text()?;
                events::Kind::parse(name).ok_or_else(|| row.bad(format!("no kind of event {name:?}")))?
            },
            about: row.json()?,
        })
    }
}

impl Record for Mark {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Mark, R> {
        Ok(Mark { transaction: row.int()?, no: row.int()? })
    }
}

macro_rules! single {
    ($($Value:ty = |$row:ident| $read:expr;)+) => {$(
        impl Record for $Value {
            fn of_row<R: Columns>($row: &mut Cursor<'_, R>) -> Read<$Value, R> {
                $read
            }
        }
    )+};
}

// Rows of one column.
single! {
    RunNo = |row| row.int().map(RunNo);
    Position = |row| row.int().map(Position);
    i64 = |row| row.int();
    // A name, of which both databases have the bytes.
    String = |row| row.utf8();
    Spec = |row| row.json();
}

impl Record for TokenKey {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<TokenKey, R> {
        let name = row.text()?.trim_start_matches("token_key_");
        Ok(TokenKey {
            id: name.parse().map_err(|_| row.bad("no number of a token key"))?,
            secret: row.blob()?.try_into().map_err(|_| row.bad("a token key is not 32 bytes"))?,
        })
    }
}

/// Columns of a payload.
pub const PAYLOAD: &str = "codec, key_id, len, sha256, bytes";

impl Record for Payload {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Payload, R> {
        Ok(Payload {
            codec: {
                let code: u8 = row.small()?;
                Codec::from_u8(code).map_err(|e| row.bad(e))?
            },
            key_id: row.small()?,
            len: row.small()?,
            sha256: row.blob()?.try_into().map_err(|_| row.bad("a SHA-256 has 32 bytes"))?,
            part: 0,
            bytes: Bytes::copy_from_slice(row.blob()?),
        })
    }
}

/// Columns of an entry's value: as an SQLite store has a short one in the entry `e` itself, or from the payload `p` that
/// is joined to it.
const VALUE: &str = "p.codec, p.key_id, p.len, p.sha256, p.bytes";

impl Dialect {
    pub fn value(self) -> String {
        let own = if self == Dialect::Sqlite { "e.value" } else { "NULL::bytea" };
        format!("{own}, {VALUE}")
    }

    /// Returns the join of the payload `p` to its entry `e`, unless the entry's row holds the value: one part, in the
    /// role that is parameter `i`, of at most as many stored bytes as the parameter after it says.
    pub fn value_join(self, i: usize) -> String {
        let (role, most) = (i, i + 1);
        match self {
            Dialect::Sqlite => payloads::join(role, most),
            // The LIMIT has each looked up by its whole key, also while the planner believes that a run has few
            // payloads: it would read all of them for each entry.
            Dialect::Postgres | Dialect::PostgresRow => format!(
                "LEFT JOIN LATERAL (SELECT * FROM outlast.payloads WHERE run_no = e.run_no AND seq = e.seq \
                 AND role = ${role} AND part = 0 AND length(bytes) <= ${most} LIMIT 1) p ON true"
            ),
        }
    }
}

/// Reads a value that is kept in its entry's row; `None` if the row has none.
pub fn short_value<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Option<Payload>, R> {
    let Some(blob) = row.maybe_blob()? else { return Ok(None) };
    Payload::from_bytes(Bytes::copy_from_slice(blob)).map(Some).map_err(|e| row.bad(e))
}

impl<T: Record> Record for (T, Option<Payload>) {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<(T, Option<Payload>), R> {
        let entry = T::of_row(row)?;
        if let Some(short) = short_value(row)? {
            return Ok((entry, Some(short)));
        }
        let codec = Cursor::at(row.row, row.next).maybe_int()?;
        Ok((entry, codec.map(|_| Payload::of_row(row)).transpose()?))
    }
}

/// Columns of an item that a resume reads ([`ItemRow`]), fewer than those of an entry.
pub const ITEM_ROW: &str = "e.seq, e.key, e.attempt, e.opened_at, e.closed_at, e.spent_cost, e.spent_tokens, e.spent_calls, e.detail";

impl Record for ItemRow {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<ItemRow, R> {
        let mut item = ItemRow {
            seq: Seq(row.int()?),
            key: row.name()?.to_owned(),
            attempt: AttemptNo(row.int()?),
            opened_at: Micros(row.int()?),
            closed_at: row.maybe_int()?.map(Micros),
            spent: row.amounts()?,
            detail: row.json()?,
        };
        item.spent += item.detail.earlier;
        Ok(item)
    }
}

/// Columns of a step that a resume reads ([`StepRow`]).
pub const STEP_ROW: &str = "e.seq, e.scope, e.key, e.state, e.closed_at";

impl Record for StepRow {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<StepRow, R> {
        Ok(StepRow {
            seq: Seq(row.int()?),
            scope: row.name()?.into(),
            key: row.name()?.to_owned(),
            state: row.code("state", State::from_code)?,
            closed_at: row.maybe_int()?.map(Micros),
        })
    }
}

impl Record for (Status, i64) {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<(Status, i64), R> {
        Ok((row.code("status", Status::from_code)?, row.int()?))
    }
}

/// Returns the SQL that creates the tables that are alike, and that of the indexes that are.
///
/// `at`: prefix of each table's name. The types: of whole numbers, flags, ids (which are ASCII), other text, and JSON.
pub fn alike(at: &str, [int, flag, id, text, json]: [&str; 5]) -> [String; 2] {
    let tables = format!(
        "
CREATE TABLE {at}instances (
    no {int} PRIMARY KEY, life {int} NOT NULL, heartbeat {int} NOT NULL, op_counter {int} NOT NULL,
    registered_at {int} NOT NULL, last_seen {int} NOT NULL, identity {json} NOT NULL);
CREATE INDEX instances_live ON {at}instances (no) WHERE life = {LIVE};

CREATE TABLE {at}runs (
    no {int} PRIMARY KEY, id {id} NOT NULL UNIQUE, status {int} NOT NULL, parent {int},
    created_at {int} NOT NULL, began_at {int}, ended_at {int},
    next_seq {int} NOT NULL, next_attempt {int} NOT NULL, fence {int} NOT NULL, iteration {int} NOT NULL,
    explicit_loops {flag} NOT NULL, answers {int} NOT NULL, closed {int} NOT NULL,
    stop_requested {flag} NOT NULL, replayed {int} NOT NULL, saved_nano_usd {int} NOT NULL,
    charges {json} NOT NULL, policy {json} NOT NULL, halt {json}, error {text}, command_key {text}, job {text}, counts {json}, origins {json},
    turns {json}, wake_at {int}, budgets {json}, approvals {json});

CREATE TABLE {at}specs (run_no {int} PRIMARY KEY, spec {json} NOT NULL);

CREATE TABLE {at}envelopes (
    no {int} PRIMARY KEY, owner {json} NOT NULL, limits {json} NOT NULL,
    reserved_cost {int} NOT NULL, reserved_tokens {int} NOT NULL, reserved_calls {int} NOT NULL,
    doubt_cost {int} NOT NULL, doubt_tokens {int} NOT NULL,
    spent_cost {int} NOT NULL, spent_tokens {int} NOT NULL, spent_calls {int} NOT NULL,
    spent_loops {int} NOT NULL, spent_active_ms {int} NOT NULL, spent_restarts {int} NOT NULL);

CREATE TABLE {at}budgets (no {int} PRIMARY KEY, budget {json} NOT NULL);
"
    );
    let indexes = format!(
        "
CREATE INDEX runs_by_status ON {at}runs (status, no);
CREATE INDEX runs_of_jobs ON {at}runs (no) WHERE job IS NOT NULL;
CREATE INDEX leases_by_instance ON {at}leases (instance);
CREATE INDEX calls_open ON {at}entries (instance) WHERE state = {OPEN} AND kind = {CALL};
CREATE INDEX entries_of_items ON {at}entries (run_no, seq) WHERE kind = {ITEM};
CREATE INDEX approvals ON {at}entries (opened_at, run_no, seq) WHERE kind = {APPROVAL};
CREATE INDEX approvals_open ON {at}entries (opened_at, run_no, seq) WHERE kind = {APPROVAL} AND state = {OPEN};
CREATE INDEX entries_by_match ON {at}entries (run_no, match_key, seq) WHERE match_key IS NOT NULL;
"
    );
    [tables, indexes]
}
