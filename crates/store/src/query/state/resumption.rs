//! Point from which an agent that records numbered steps goes on.

use outlast_core::{
    state::{Progress, ResumePoint, StepKey, furthest},
    store::{Error, state::Scan},
};

use super::{agent_no, blob, keys_of};
use crate::{
    query::{Database, Query},
    rows::{Columns, Cursor, Read, Record},
};

/// Returns the furthest step done, and the furthest begun, among the keys that begin with `prefix`.
pub fn point<D: Database>(db: &D, namespace: &str, agent: &str, prefix: &str) -> Result<ResumePoint, Error> {
    let d = D::DIALECT;
    let o = d.schema();
    if StepKey::is_stem(prefix) {
        let furthest = |progress: Progress| {
            format!(
                "SELECT * FROM (SELECT k.key, k.progress, k.n FROM {o}keys k {}WHERE k.agent_no = {} \
                 AND k.stem IS NOT NULL AND {} AND k.progress = {} ORDER BY k.n DESC LIMIT 1) f",
                d.indexed_by("keys_steps"),
                agent_no(d),
                d.is_name("k.stem", 3),
                progress.code()
            )
        };
        let text = format!("{} UNION ALL {}", furthest(Progress::Done), furthest(Progress::Pending));
        let rows: Vec<Step> = db.rows(Query::new(text, [blob(namespace), blob(agent), blob(prefix)]))?;
        let mut done = None;
        let mut pending = None;
        for step in rows {
            match step.progress {
                Some(Progress::Done) => done = step.n,
                _ => pending = step.n.map(|n| (n, step.key)),
            }
        }
        // Steps with leading zeros that an older version wrote have no stem.
        if let Some(done) = done {
            let (pending, pending_key) = pending.unzip();
            return Ok(ResumePoint { done, pending, pending_key });
        }
    }
    let scan = Scan {
        namespace: namespace.to_owned(),
        agent: agent.to_owned(),
        prefix: prefix.to_owned(),
        limit: usize::MAX,
        ..Scan::default()
    };
    let (keys, values) = keys_of(d, &scan);
    let text = format!(
        "SELECT k.key, k.progress, k.n FROM {o}keys k WHERE k.agent_no = {} AND k.progress IS NOT NULL{keys}",
        agent_no(d)
    );
    let steps: Vec<Step> = db.rows(Query::new(text, values))?;
    Ok(furthest(prefix, steps.iter().filter_map(|step| Some((step.key.as_str(), step.progress?)))))
}

/// A key that records a step, with the step's progress and number.
struct Step {
    key: String,
    progress: Option<Progress>,
    n: Option<i64>,
}

impl Record for Step {
    fn of_row<R: Columns>(row: &mut Cursor<'_, R>) -> Read<Step, R> {
        let (key, progress) = (row.utf8()?, row.maybe_int()?.and_then(Progress::from_code));
        Ok(Step { key, progress, n: row.maybe_int()? })
    }
}
