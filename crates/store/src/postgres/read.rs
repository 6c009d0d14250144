//! Answers questions from the database.

use std::sync::PoisonError;

use outlast_core::{
    engine::{Op, Outcome},
    journal::{Payload, Role},
    store::{Answer, Durability, Error, Hint, Losses, Question, SharedObjects, Store, Ticket},
    words::{Micros, Seq},
};

use super::{
    PostgresStore,
    connect::Link,
    rows,
    statement::{Param, all, maybe, page, params},
    time::NOW,
};
use crate::{
    group::Hands,
    query::{self, Database, Query, Value},
    rows::{Cell, Dialect, Record},
    tables::PAYLOAD,
};

impl Database for PostgresStore {
    const DIALECT: Dialect = Dialect::Postgres;

    fn rows<T: Record>(&self, query: Query) -> Result<Vec<T>, Error> {
        self.readers.run(async move |c: &Link| {
            let cells: Vec<Cell<'_>> = query.values.iter().map(Value::cell).collect();
            let params: Vec<Param<'_>> = cells.iter().map(Cell::param).collect();
            match query.is_page {
                true => page(c, &query.text, &params, rows::record).await,
                false => all(c, &query.text, &params, rows::record).await,
            }
        })
    }

    fn own_answer(&self, question: &Question) -> Result<Answer, Error> {
        Ok(match *question {
            Question::NewestRequest { run } => Answer::NewestRequest(self.readers.run(async move |c: &Link| {
                let sql = "SELECT seq FROM (SELECT seq, role FROM outlast.payloads WHERE run_no = $1 \
                           ORDER BY seq DESC LIMIT 64) AS newest WHERE role = $2 ORDER BY seq DESC LIMIT 1";
                Ok(maybe(c, sql, params![run.0, Role::Request.code()], rows::record).await?.map(Seq))
            })?),
            Question::Payload { run, seq, role } => Answer::Payload(self.readers.run(async move |c: &Link| {
                let sql = format!(
                    "SELECT {PAYLOAD} FROM outlast.payloads WHERE run_no = $1 AND seq = $2 AND role = $3 ORDER BY part"
                );
                let parts = all(c, &sql, params![run.0, seq.0, role.code()], rows::record).await?;
                Ok(Payload::join(parts))
            })?),
            _ => {
                let now = self.readers.run(async move |c: &Link| {
                    maybe(c, &format!("SELECT {NOW}"), params![], rows::record).await
                })?;
                Answer::Now(self.time.now(now.map(Micros))?)
            }
        })
    }
}

impl PostgresStore {
    fn queue(&self, op: Op, durability: Durability, hands: Hands) -> Ticket {
        match self.check() {
            Ok(()) => self.writer.submit(op, durability, hands),
            Err(e) => Ticket::ready(Err(e)),
        }
    }
}

impl Store for PostgresStore {
    fn submit(&self, op: Op, durability: Durability) -> Ticket {
        self.queue(op, durability, Hands::Writers)
    }

    fn submit_here(&self, op: Op, durability: Durability) -> Ticket {
        // The writer has a runtime of its own, which cannot be driven within another.
        let is_within = tokio::runtime::Handle::try_current().is_ok();
        self.queue(op, durability, if is_within { Hands::Writers } else { Hands::Mine })
    }

    fn ahead(&self, op: Op) -> Result<Result<Outcome, Error>, Op> {
        match self.check() {
            Ok(()) => self.writer.ahead(op),
            Err(e) => Ok(Err(e)),
        }
    }

    fn answer(&self, question: &Question) -> Result<Answer, Error> {
        query::answer(self, question)
    }

    fn check(&self) -> Result<(), Error> {
        self.readers.refuse_forked()?;
        self.same.check()
    }

    fn on_hint(&self, hint: Hint) {
        if !self.readers.is_forked() && self.hints.add(hint) {
            self.readers.hear(self.hints.clone());
        }
    }

    fn losses(&self) -> Losses {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn place(&self) -> String {
        self.address.place().to_owned()
    }
    fn is_shared(&self) -> bool {
        true
    }
    fn objects(&self) -> Option<&dyn SharedObjects> {
        Some(self)
    }
}
