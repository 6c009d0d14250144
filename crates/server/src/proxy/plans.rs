//! Plans of logins at the proxy: which login a call is of, whether it may leave now, and what its answer tells.
//!
//! The last told values and the calls in flight of a login are one value of the store, changed by compare-and-set: every
//! process on the store sees them, and so does the next life.

use std::{collections::HashMap, sync::Arc, time::Duration};

use outlast_core::{
    call::{
        Key,
        plan::{CallId, Heard, Plan, Verdict},
    },
    engine,
    envelope::Ceilings,
    reads::rows,
    run::Life,
    state::Table,
    store::{Ask as _, Durability, Error, Store},
    words::{Digest, InstanceNo, Map, Micros},
};
use parking_lot::Mutex;

use super::{call::Call, host::Host};
use crate::wire::credentials::Credential;

/// Number of remembered credentials at which all of them are forgotten.
const MANY: usize = 1024;

/// Pause before a change that the store did not take is tried again. Each one is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Longest pause: behind it calls are in flight no more.
const LONGEST_PAUSE: Duration = Duration::from_secs(1_800);

/// Plans of all logins whose calls this process makes.
#[derive(Default)]
pub struct Plans {
    /// Account that the latest request with each credential named. Some requests of a CLI name none.
    accounts: Mutex<HashMap<Digest, Arc<str>>>,
    /// Tickets of the calls in flight that were admitted under ceilings.
    tickets: Mutex<Map<Key, Ticket>>,
}

/// Handle of a call that the plan of its login counts.
#[derive(Clone, Debug)]
pub struct Ticket {
    login: Arc<str>,
    id: CallId,
    /// Report of the answer's head; `None` before it comes.
    heard: Option<Arc<Heard>>,
}

impl Plans {
    /// Returns the login of a call: the name of its account, else the digest of its credential. `None` for a call with a
    /// key of Outlast's own, which is billed.
    pub fn login(&self, call: &Call) -> Option<Arc<str>> {
        let Credential::Passed { digest, .. } = call.credential() else { return None };
        let row = call.dialect.upstream.row();
        row.plan.as_ref()?;
        let provider = row.name;
        let mut accounts = self.accounts.lock();
        if let Some(account) = call.account() {
            let login: Arc<str> = format!("{provider}:{account}").into();
            if accounts.len() >= MANY {
                accounts.clear();
            }
            accounts.insert(*digest, login.clone());
            return Some(login);
        }
        let known = accounts.get(digest).cloned();
        Some(known.unwrap_or_else(|| format!("{provider}:key:{}", &digest.to_string()[..16]).into()))
    }

    /// Keeps the ticket of a call that is about to be sent.
    pub fn opened(&self, key: Key, ticket: Ticket) {
        self.tickets.lock().insert(key, ticket);
    }

    /// Records what the head of an answer reports in the plan of the call's login, in a task of its own: no
    /// client waits for it.
    pub fn told(&self, host: &Host, call: &Call, key: Key, heard: Heard) {
        let heard = Arc::new(heard);
        let ticket = self.tickets.lock().get_mut(&key).map(|ticket| {
            ticket.heard = Some(heard.clone());
            ticket.clone()
        });
        let id = ticket.as_ref().map(|t| t.id);
        let Some(login) = ticket.map(|t| t.login).or_else(|| self.login(call)) else { return };
        if heard.windows.is_empty() && id.is_none() {
            return;
        }
        let run = call.seat.run;
        spawn(host, login, move |plan, now| {
            plan.is_used_by(run);
            if id.is_some() || plan.is_news(&heard.windows, now) {
                plan.told(id, &heard, now);
            }
        });
    }

    /// Reports to the login's plan that a call has ended. `never_left`: the call was not sent.
    pub fn over(&self, host: &Host, key: Key, never_left: bool) {
        if let Some(ticket) = self.tickets.lock().remove(&key) {
            ticket.over(host, never_left);
        }
    }
}

impl Ticket {
    async fn enter(
        &self,
        store: &dyn Store,
        ceilings: &Ceilings,
        instance: InstanceNo,
    ) -> Result<Verdict, Error> {
        let admit = |plan: &mut Plan, now| plan.admit(self.id, instance, ceilings, now);
        let verdict = change(store, &self.login, admit).await?;
        if verdict != Verdict::Wait {
            return Ok(verdict);
        }
        let dead = dead(store, &self.login)?;
        if dead.is_empty() {
            return Ok(verdict);
        }
        change(store, &self.login, |plan, now| {
            plan.bury(|instance| !dead.contains(&instance), now);
            admit(plan, now)
        })
        .await
    }

    /// Reports to the login's plan that the call has ended. `never_left`: the call was not sent.
    pub fn over(self, host: &Host, never_left: bool) {
        let Ticket { login, id, heard } = self;
        spawn(host, login, move |plan, now| match never_left {
            true => plan.never_left(id),
            false => plan.ended(id, heard.as_deref(), now),
        });
    }
}

/// Asks whether a call may be sent under the ceilings of its run. `Go` comes with a ticket, unless the call
/// has no login.
///
/// Errors: those of the store, after which the call must not be sent.
pub async fn enter(
    host: &Host,
    call: &Call,
    instance: InstanceNo,
) -> Result<(Verdict, Option<Ticket>), Error> {
    let ceilings = &call.seat.plan;
    let login = if ceilings.is_empty() { None } else { host.plans.login(call) };
    let Some(login) = login else { return Ok((Verdict::Go, None)) };
    let ticket = Ticket { login, id: CallId(host.nonce()), heard: None };
    match ticket.enter(host.store.as_ref(), ceilings, instance).await {
        Ok(Verdict::Go) => Ok((Verdict::Go, Some(ticket))),
        Ok(verdict) => Ok((verdict, None)),
        Err(e) => {
            // The store may have taken it all the same: in flight for ever, it would hold others back.
            ticket.over(host, true);
            Err(e)
        }
    }
}

/// Returns those processes with calls in flight under the login that are dead.
fn dead(store: &dyn Store, login: &str) -> Result<Vec<InstanceNo>, Error> {
    let mut dead = Vec::new();
    for no in rows::kept::<Plan>(store, Table::Plans, login)?.row.in_flight() {
        if store.instance(no)?.is_none_or(|instance| instance.life != Life::Live) {
            dead.push(no);
        }
    }
    Ok(dead)
}

/// Changes the plan of a login in a task of its own, again and again until the store takes it: a call that has ended and
/// stays in flight in the plan would hold others back for an hour.
fn spawn(host: &Host, login: Arc<str>, with: impl Fn(&mut Plan, Micros) + Send + Sync + 'static) {
    let store = host.store.clone();
    tokio::spawn(async move {
        let mut pause = FIRST_PAUSE;
        while let Err(e) = change(store.as_ref(), &login, &with).await {
            tracing::warn!(error = %e, "cannot note what a provider tells of a plan");
            if matches!(e, Error::Closed) || pause > LONGEST_PAUSE {
                return;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    });
}

/// Changes the plan of a login, however many processes do so at once. Writes nothing where nothing changes.
async fn change<T>(
    store: &dyn Store,
    login: &str,
    with: impl Fn(&mut Plan, Micros) -> T,
) -> Result<T, Error> {
    loop {
        let kept = rows::kept::<Plan>(store, Table::Plans, login)?;
        let mut plan = kept.row.clone();
        let answer = with(&mut plan, store.now()?);
        if plan == kept.row {
            return Ok(answer);
        }
        let put = rows::put(Table::Plans, login, &plan, kept.version)?;
        match store.ask(put, Durability::Committed).await {
            Ok(_) => {}
            Err(Error::Engine(engine::Error::Conflict { .. })) => continue,
            Err(e) => return Err(e),
        }
        return Ok(answer);
    }
}
