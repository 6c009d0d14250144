//! Approvals, with the information a person needs to decide.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    journal::{
        ApprovalId, Entry, Kind, Role,
        approval::{ApprovalDetail, MOST_PENDING, Status},
    },
    reads::entries,
    run::status,
    store::{self, ApprovalFilter as Filter, Store},
    words::{Micros, RunId, RunNo},
};

/// Approval with the information a person needs to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub id: ApprovalId,
    pub run: RunId,
    /// Name of the run; `None` if it has none.
    pub name: Option<String>,
    /// The caller's own key of the request, or a key made of tool and arguments.
    pub key: String,
    pub status: Status,
    pub asked_at: Micros,
    pub detail: ApprovalDetail,
    /// Arguments of the tool call, in canonical JSON.
    pub arguments: Bytes,
}

/// Returns one approval, or `None` for an unknown id.
pub fn find(store: &dyn Store, id: ApprovalId) -> Result<Option<View>, store::Error> {
    let Some(entry) = store.entry(id.run, id.seq)?.filter(|e| e.kind == Kind::Approval) else {
        return Ok(None);
    };
    let now = store.now()?;
    Runs::default().view(store, entry, now)
}

/// Lists approvals, newest first; with `status`, only approvals in that status.
pub fn list(store: &dyn Store, filter: &Filter, status: Option<Status>) -> Result<Vec<View>, store::Error> {
    let (now, mut runs) = (store.now()?, Runs::default());
    let mut found = Vec::new();
    for entry in store.approvals(filter)? {
        let view = runs.view(store, entry, now)?;
        found.extend(view.filter(|v| status.is_none_or(|wanted| v.status == wanted)));
    }
    Ok(found)
}

/// Lists the newest approvals that wait for a person, of one run or of all.
pub fn pending(store: &dyn Store, run: Option<RunNo>) -> Result<Vec<View>, store::Error> {
    list(store, &Filter { run, open: true, limit: MOST_PENDING }, Some(Status::Pending))
}

/// Cache of the runs that were looked up: many approvals belong to few runs.
#[derive(Default)]
struct Runs(BTreeMap<RunNo, Option<Asker>>);

/// Run that asks.
#[derive(Clone)]
struct Asker {
    id: RunId,
    name: Option<String>,
    status: status::Status,
}

impl Runs {
    fn view(&mut self, store: &dyn Store, entry: Entry, now: Micros) -> Result<Option<View>, store::Error> {
        let id = ApprovalId { run: entry.run, seq: entry.seq };
        let (Some(detail), Some(Asker { id: run, name, status: standing })) =
            (entry.approval, self.run(store, entry.run)?)
        else {
            return Ok(None);
        };
        let over = matches!(standing, status::Status::Completed | status::Status::Cancelled);
        let status = match detail.status(entry.state, now) {
            Status::Pending if over => Status::Void,
            status => status,
        };
        let arguments = entries::kept(store, id.run, id.seq, Role::About)?.unwrap_or_default();
        let key = entry.key.unwrap_or_default();
        Ok(Some(View { id, run, name, key, status, asked_at: entry.opened_at, detail: *detail, arguments }))
    }

    fn run(&mut self, store: &dyn Store, no: RunNo) -> Result<Option<Asker>, store::Error> {
        if let Some(known) = self.0.get(&no) {
            return Ok(known.clone());
        }
        let found = store.run(no)?.map(|v| Asker {
            id: v.run.id,
            name: v.spec.name.clone().or_else(|| v.run.job.map(|job| job.name)),
            status: v.run.status,
        });
        self.0.insert(no, found.clone());
        Ok(found)
    }
}
