//! The store of another machine, over its server: each question and each order of a person is one POST (`api::rows`).
//!
//! Commands that look at runs take a store; given this one, they print what the other machine's store has. What has no
//! text is refused by name, and nothing is kept between two looks but payloads, which never change.

mod line;

use std::collections::BTreeMap;

use outlast_core::{
    engine::{Op, Outcome},
    journal::{Entry, ItemRow, Payload, Role},
    store::{Answer, Durability, Error, Page, Question, RunFilter, RunView, Store, Ticket},
    words::{RunNo, Seq},
};
use parking_lot::Mutex;

pub use self::line::{Address, BadAddress, download};
use self::line::{Line, differs, refused};
use crate::{
    api::rows::{Answered, MOST, PATH, SHAPES, Sent, What},
    proxy::upstream::Key,
    wire::network::Network,
};

/// Largest size of the payloads kept because an earlier answer brought them along, in bytes; beyond it they
/// are dropped.
const KEPT: usize = 64 << 20;

/// A store behind a server. Blocks; not for async code.
pub struct Remote {
    line: Line,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    payloads: BTreeMap<(RunNo, Role, Seq), Payload>,
    len: usize,
}

impl Remote {
    /// Reaches the server, and checks that its questions and orders have the shapes that are known here.
    ///
    /// Errors: `server_unreachable`, `server_denied`, `server_differs`.
    pub fn reach(server: Address, token: Option<&Key>, network: &Network) -> Result<Remote, Error> {
        let remote = Remote { line: Line::new(server, token, network)?, kept: Mutex::default() };
        let told: serde_json::Value = remote.line.get(PATH)?.json()?;
        let (had, theirs) =
            (told["shapes"].as_i64().unwrap_or(0), told["version"].as_str().unwrap_or("unknown"));
        if had != SHAPES {
            let why =
                format!("its version is {theirs}, its rows have shape {had}, and {SHAPES} is known here");
            return Err(differs(remote.line.server(), &why));
        }
        Ok(remote)
    }

    fn ask(&self, question: &Question) -> Result<Answer, Error> {
        let sent = Sent { shapes: SHAPES, what: What::Ask(question.clone()) };
        let Ok(body) = serde_json::to_string(&sent) else { return self.no_route("this read") };
        let Answered { answer, beside } = self.line.ask(PATH, body)?.json()?;
        if let (Question::Payload { run, seq, role }, Answer::Payload(found)) = (question, &answer) {
            let mut kept = self.kept.lock();
            if kept.len > KEPT {
                *kept = Kept::default();
            }
            for (at, payload) in found.iter().map(|payload| (*seq, payload.clone())).chain(beside) {
                kept.len += payload.bytes.len();
                kept.payloads.insert((*run, *role, at), payload);
            }
        }
        Ok(answer)
    }

    fn kept(&self, run: RunNo, role: Role, seq: Seq) -> Option<Payload> {
        self.kept.lock().payloads.get(&(run, role, seq)).cloned()
    }

    /// Asks for pages of at most [`MOST`] rows until `limit` rows are read. `question` asks for a page of so many rows
    /// behind a row, `rows` unwraps its answer.
    fn pages<T>(
        &self,
        limit: usize,
        question: impl Fn(Option<&T>, usize) -> Question,
        rows: impl Fn(Answer) -> Option<Vec<T>>,
    ) -> Result<Vec<T>, Error> {
        let mut all: Vec<T> = Vec::new();
        while all.len() < limit {
            let wanted = MOST.min(limit - all.len());
            let page = rows(self.ask(&question(all.last(), wanted))?);
            let page = page.ok_or_else(|| differs(self.line.server(), &"another question's answer"))?;
            let is_last = page.len() < wanted;
            all.extend(page);
            if is_last {
                break;
            }
        }
        Ok(all)
    }

    /// Error of a read or an operation that has no text.
    fn no_route<T>(&self, what: &str) -> Result<T, Error> {
        let message = format!("{} has no route for {what}", self.line.server());
        let hint = "type the command on the machine that has the store".to_owned();
        Err(refused("not_over_a_server", message, Some(hint)))
    }

    fn order(&self, op: Op) -> Result<Outcome, Error> {
        let (by, op) = match op {
            Op::InName(named) => (Some(named.by), named.op),
            op => (None, op),
        };
        let name = op.name();
        let Ok(body) = serde_json::to_string(&Sent { shapes: SHAPES, what: What::Order(op) }) else {
            return self.no_route(&format!("the operation {name}"));
        };
        self.line.order(PATH, body, by.as_deref())?.json()
    }
}

impl Store for Remote {
    fn submit(&self, op: Op, _: Durability) -> Ticket {
        Ticket::ready(self.order(op))
    }

    fn answer(&self, question: &Question) -> Result<Answer, Error> {
        match question {
            Question::Payload { run, seq, role } => match self.kept(*run, *role, *seq) {
                Some(payload) => Ok(Answer::Payload(Some(payload))),
                None => self.ask(question),
            },
            Question::Runs { filter } => {
                let page = |last: Option<&RunView>, limit| {
                    let before = last.map(|view| view.run.no).or(filter.before);
                    Question::Runs { filter: RunFilter { before, limit, ..filter.clone() } }
                };
                let rows = |answer| if let Answer::Runs(rows) = answer { Some(rows) } else { None };
                Ok(Answer::Runs(self.pages(filter.limit, page, rows)?))
            }
            Question::Entries { run, after, limit } => {
                let page = |last: Option<&Entry>, limit| Question::Entries {
                    run: *run,
                    after: last.map_or(*after, |e| e.seq),
                    limit,
                };
                let rows = |answer| if let Answer::Entries(rows) = answer { Some(rows) } else { None };
                Ok(Answer::Entries(self.pages(*limit, page, rows)?))
            }
            Question::Items { run, page: all } => {
                let page = |last: Option<&(ItemRow, _)>, limit| {
                    let after = last.map_or(all.after, |(row, _)| row.seq);
                    Question::Items { run: *run, page: Page { after, limit, ..*all } }
                };
                let rows = |answer| if let Answer::Items(rows) = answer { Some(rows) } else { None };
                Ok(Answer::Items(self.pages(all.limit, page, rows)?))
            }
            question => self.ask(question),
        }
    }

    fn place(&self) -> String {
        self.line.server().to_string()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn is_remote(&self) -> bool {
        true
    }
}
