//! The store for the commands of another machine (`outlast --server`, [`crate::remote`]): one POST, of a question or of
//! an order.
//!
//! Their shapes are those of this version, [`SHAPES`]; programs use the other routes. What may be asked and ordered is
//! what [`Question`] and [`Op`] can be read as: keys that sign tokens and operations of a run's own processes have no text.
//! Values of variables and price files are left out of the answers: no command prints them.

use http::Response;
use outlast_core::{
    engine::{BudgetSet, Forget, Forgot, Fork, Named, Op, Outcome},
    journal::{Payload, Role},
    reads::{
        budgets,
        forks::{Point, prepare},
        spend,
    },
    store::{self, Answer, Durability, Question, Store},
    words::{RunNo, Seq},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::request::{ApiRequest, json, of_type};
use crate::{
    proxy::config::RunFiles,
    state::Error,
    version,
    wire::body::{AnswerBody, JSON},
};

/// Path of the store: a GET tells its shapes and the server's version, a POST asks and orders.
pub const PATH: &str = "/v1/rows/store";

/// Number of the shapes of questions, orders and their answers. A server and a client have to have the same.
pub const SHAPES: i64 = 4;

/// Most rows of one answer: for more, a page after the other is asked for.
pub const MOST: usize = 2_000;

/// Number of neighbouring entries whose payloads are sent along with the requested one; `NEIGHBOURS_LEN`: size in bytes
/// at which no further one is added.
pub const NEIGHBOURS: i64 = 64;
const NEIGHBOURS_LEN: usize = 4 << 20;

/// Body of a POST.
#[derive(Serialize, Deserialize)]
pub struct Sent {
    pub shapes: i64,
    pub what: What,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Answered with an [`Answered`].
    Ask(Question),
    /// Answered with the operation's outcome.
    Order(Op),
}

/// Answer to a question.
#[derive(Serialize, Deserialize)]
pub struct Answered {
    pub answer: Answer,
    /// For a payload: those of neighbouring entries in the same role. The requests of a conversation are stored as
    /// differences from one another, so that reading one would otherwise take many requests.
    pub beside: Vec<(Seq, Payload)>,
}

/// Answers with the shapes of this server.
pub(super) async fn about(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    reads_all(&asked)?;
    json(&json!({ "shapes": SHAPES, "version": version::line() }))
}

/// Answers a question, or carries out an order of a person.
pub(super) async fn post(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    reads_all(&asked)?;
    let other = |why: String| Error::BadRequest(format!("another version of outlast asks: {why}"));
    let sent: Sent = serde_json::from_slice(&asked.body).map_err(|e| other(e.to_string()))?;
    if sent.shapes != SHAPES {
        return Err(other(format!("its shapes have the number {}, and these {SHAPES}", sent.shapes)));
    }
    let text = match sent.what {
        What::Ask(question) => {
            asked.read(move |store| Ok(text(&ask(store, &question.bounded(MOST))?))).await??
        }
        What::Order(op) => {
            asked.caller.must_be_a_person()?;
            let (by, files) = (asked.actor(), asked.host.config.files.clone());
            let done = move |store: &dyn Store| match op {
                Op::Forget(verb) => forget(store, *verb, files.as_deref()),
                op => carry_out(store, by, op),
            };
            let told = asked.read(move |store| Ok(done(store).and_then(|told| text(&told)))).await;
            // Calls that wait for room ask again.
            asked.host.wake();
            told??
        }
    };
    Ok(of_type(text, JSON))
}

fn reads_all(asked: &ApiRequest) -> Result<(), Error> {
    if asked.caller.only_run().is_some() { Err(Error::OwnRunOnly) } else { Ok(()) }
}

fn text(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|e| Error::BadValue(e.to_string()))
}

fn ask(store: &dyn Store, question: &Question) -> Result<Answered, store::Error> {
    let answer = store.answer(question)?;
    let beside = match (question, &answer) {
        (Question::Payload { run, seq, role }, Answer::Payload(found)) => {
            let had = found.as_ref().map_or(0, |payload| payload.bytes.len());
            neighbours(store, *run, *seq, *role, had)?
        }
        _ => Vec::new(),
    };
    Ok(Answered { answer, beside })
}

fn neighbours(
    store: &dyn Store,
    run: RunNo,
    seq: Seq,
    role: Role,
    mut len: usize,
) -> Result<Vec<(Seq, Payload)>, store::Error> {
    let first = seq.0 - seq.0.rem_euclid(NEIGHBOURS);
    let mut beside = Vec::new();
    for at in (first..first.saturating_add(NEIGHBOURS)).filter(|at| *at != seq.0).map(Seq) {
        if len >= NEIGHBOURS_LEN {
            break;
        }
        if let Some(payload) = store.payload(run, at, role)? {
            len += payload.bytes.len();
            beside.push((at, payload));
        }
    }
    Ok(beside)
}

/// Forgets a run, and then the files of it that are on this machine.
fn forget(store: &dyn Store, verb: Forget, files: Option<&dyn RunFiles>) -> Result<Outcome, Error> {
    let run = store.run(verb.run)?.map(|view| view.run.id);
    let told = spend::forget(store, verb)?;
    if let (Forgot::Gone, Some(run), Some(files)) = (told, run, files) {
        let stay = |e| format!("run {run} is deleted, and its files beside the store are not: {e}");
        files.forget(store, &run).map_err(|e| store::Error::Io { why: stay(e) })?;
    }
    Ok(Outcome::Forgotten(told))
}

/// Carries out an order in the name of who gave it, as the commands of this machine do.
fn carry_out(store: &dyn Store, by: String, op: Op) -> Result<Outcome, Error> {
    let op = match op {
        // Earlier runs are charged to the budget here: nothing is left to apply.
        Op::SetBudget(set) => {
            let (told, _) = budgets::set(store, *set, Some(&by))?;
            return Ok(Outcome::BudgetSet(BudgetSet { applied: true, ..told }));
        }
        // Prepared here, where the state is: the other machine has only named the point of the fork.
        Op::Fork(fork) => {
            let point = Point::Found(fork.origin.seq, fork.origin.at);
            if fork.origin.seq < Seq(0) {
                return Err(Error::BadRequest(format!(
                    "no fork begins behind the entry {}",
                    fork.origin.seq
                )));
            }
            let prepared = prepare(store, fork.origin.run, &point, fork.id, fork.limits)?;
            Fork { name: fork.name, ..prepared }.into()
        }
        op => op,
    };
    Ok(store.submit(Op::InName(Box::new(Named { by, op })), Durability::Synced).wait()?)
}
