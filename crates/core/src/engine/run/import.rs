//! Import: makes runs of another store in this one, with all that belongs to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    engine::{
        Change, Error, Loaded, Need,
        run::{leave::arrive, start::named_budgets},
        state::put::Author,
    },
    envelope::{Envelope, Owner, audit::Sums},
    journal::{CallDetail, Entry, Payload, Role},
    run::{
        Attempt, Identity, Instance, Life, Origin, Own, Run, Spec,
        snapshot::{AGENT, namespace},
    },
    state::{
        self, Name, Namespace, Position, Value,
        rows::{Current, NewCommit, NewVersion},
        run_namespace,
    },
    store::state::Event as Version,
    words::{Digest, EnvelopeNo, InstanceNo, Micros, Row, RunNo, Seq},
};

/// Everything that a store has of one run.
#[derive(Clone, Debug)]
pub struct Whole {
    pub run: Run,
    pub spec: Spec,
    pub envelope: Envelope,
    pub attempts: Vec<Attempt>,
    pub entries: Vec<Entry>,
    /// Payloads of the entries; those of entry 0 are the run's own.
    pub payloads: Vec<(Seq, Role, Payload)>,
    /// Namespace of the run's state; `None` if it has no state.
    pub namespace: Option<Namespace>,
    /// Versions of the run's state, in the order of their positions.
    pub versions: Vec<Version>,
    /// Snapshots by name.
    pub snapshots: Vec<(String, Bytes)>,
}

/// Makes a run and all runs below it in this store, under numbers of its own. What they have spent and what they hold
/// for calls in doubt comes along. A run that was moved is here what it was before.
///
/// Synced, one commit. Named budgets are those of this store; what was spent is in none of their windows.
/// Errors: `RunExists`; `NotWhole` for a run that goes on, or whose sums are not those of its entries: children were
/// deleted. Nothing is written then.
#[derive(Clone, Debug)]
pub struct Import {
    /// Parents before their children.
    pub runs: Vec<Whole>,
    /// Process that imports them. It stands for those of the other store, all of which are gone.
    pub identity: Identity,
    /// Digest of the bundle that they come from, which is imported once; `None` for a copy of which nobody keeps count.
    pub bundle: Option<Digest>,
}

/// Outcome of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    /// Number of the first run.
    Now(RunNo),
    /// The bundle was imported before; nothing was changed.
    Before,
}

impl Whole {
    fn names(&self) -> BTreeSet<Arc<Name>> {
        self.versions.iter().map(name_of).collect()
    }

    fn named(&self) -> impl Iterator<Item = Change> {
        let namespace = namespace(&self.run.id);
        let name = move |key: &String| Name::new(&*namespace, AGENT, key);
        self.snapshots.iter().map(move |(key, value)| Change::set(name(key), value))
    }
}

fn name_of(version: &Version) -> Arc<Name> {
    let item = &version.item;
    Name::new(&*item.namespace, &*item.agent, &*item.key)
}

/// Numbers of this store, by those of the other.
struct Here {
    runs: BTreeMap<RunNo, RunNo>,
    envelopes: BTreeMap<EnvelopeNo, EnvelopeNo>,
    instance: InstanceNo,
}

impl Here {
    fn run(&self, no: RunNo) -> Result<RunNo, Error> {
        let missing = || Error::NotWhole { id: format!("#{no}"), why: "it is not in the bundle".into() };
        self.runs.get(&no).copied().ok_or_else(missing)
    }

    fn envelope(&self, no: EnvelopeNo) -> Result<EnvelopeNo, Error> {
        self.envelopes.get(&no).copied().ok_or(Error::NotLoaded("an envelope of the bundle"))
    }
}

impl Import {
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = vec![Need::Numbers, Need::Budgets];
        needs.extend(self.record().map(|record| record.need()));
        for whole in &self.runs {
            needs.push(Need::RunById(whole.run.id.clone()));
            needs.extend(whole.names().into_iter().map(Need::State));
            needs.extend(whole.named().map(|change| change.need()));
        }
        needs
    }

    /// Returns the change that records the bundle.
    fn record(&self) -> Option<Change> {
        let ids: Vec<&str> = self.runs.iter().map(|whole| whole.run.id.as_str()).collect();
        let name = state::Table::Bundles.name(&self.bundle?.to_string());
        Some(Change::set(name, ids.join(" ").as_bytes()))
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<Imported, Error> {
        let record = self.record();
        if record.as_ref().is_some_and(|record| l.state.keys.contains_key(&record.name)) {
            return Ok(Imported::Before);
        }
        for whole in &self.runs {
            self.check(whole, l)?;
        }
        let numbers = l.numbers()?;
        let (no, identity) = (numbers.instance, self.identity.clone());
        l.instances.push(Row::insert(Instance {
            no,
            life: Life::Left,
            heartbeat: 0,
            op_counter: 0,
            registered_at: now,
            last_seen: now,
            identity,
        }));
        let mut here = Here { runs: BTreeMap::new(), envelopes: BTreeMap::new(), instance: no };
        for (whole, i) in self.runs.iter().zip(0..) {
            here.runs.insert(whole.run.no, RunNo(numbers.run.0 + i));
            here.envelopes.insert(whole.run.envelope(), EnvelopeNo(numbers.envelope.0 + i));
        }
        for whole in &self.runs {
            whole.put(l, &here, now)?;
            whole.put_state(l, &here)?;
        }
        let named: Vec<Change> = self.runs.iter().flat_map(Whole::named).chain(record).collect();
        Change::apply(&named, l, Author::Outlast, None, now)?;
        Ok(Imported::Now(numbers.run))
    }

    /// Checks that a run is none of this store, at rest, and whole with those below it.
    fn check(&self, whole: &Whole, l: &Loaded) -> Result<(), Error> {
        let id = || whole.run.id.to_string();
        let own = run_namespace(&whole.run.id);
        if l.run_by_id(&whole.run.id).is_some() || l.state.keys.keys().any(|name| name.namespace == own) {
            return Err(Error::RunExists { id: id() });
        }
        if whole.attempts.iter().any(Attempt::is_open) || whole.envelope.has_calls_in_flight() {
            return Err(Error::NotWhole { id: id(), why: "it has not stopped".into() });
        }
        let mut sums = Sums::default();
        let charged = |other: &&Whole| other.run.charges.contains(&whole.run.envelope());
        self.runs.iter().filter(charged).flat_map(|other| &other.entries).for_each(|e| sums.add(e));
        match sums.differ(&whole.envelope, false) {
            Some(why) => Err(Error::NotWhole { id: id(), why }),
            None => Ok(()),
        }
    }
}

impl Whole {
    /// Adds the run's rows.
    fn put(&self, l: &mut Loaded, here: &Here, now: Micros) -> Result<(), Error> {
        let (no, old) = (here.run(self.run.no)?, &self.run);
        let parent = old.parent.map(|parent| here.run(parent)).transpose()?;
        let charges = old.charges.iter().map(|envelope| here.envelope(*envelope));
        let origins = old.origins.iter().map(|origin| Ok(Origin { run: here.run(origin.run)?, ..*origin }));
        let key = |_: &String| Some(self.spec.command.as_ref()?.key(parent));
        let mut run = Run {
            no,
            parent,
            charges: charges.collect::<Result<_, _>>()?,
            origins: origins.collect::<Result<_, _>>()?,
            budgets: named_budgets(l, parent, &self.spec)?,
            command_key: old.command_key.as_ref().and_then(key),
            // A bundle of an older version has none.
            own: Own::sum(&self.entries),
            ..old.clone()
        };
        if run.is_moved() {
            arrive(&mut run, now)?;
        }
        let envelope =
            Envelope { no: here.envelope(old.envelope())?, owner: Owner::Run(no), ..self.envelope.clone() };
        l.runs.push(Row::insert(run));
        l.envelopes.push(Row::insert(envelope));
        l.specs.push((no, self.spec.clone()));
        let instance = |had: Option<InstanceNo>| had.map(|_| here.instance);
        for a in &self.attempts {
            let (instance, receiving) = (instance(a.instance), Vec::new());
            l.attempts.push(Row::insert(Attempt { run: no, instance, receiving, ..a.clone() }));
        }
        for e in &self.entries {
            // The windows of named budgets are the other store's.
            let call = |call: &CallDetail| Box::new(CallDetail { windows: Vec::new(), ..call.clone() });
            let (instance, call) = (instance(e.instance), e.call.as_deref().map(call));
            l.entries.push(Row::insert(Entry { run: no, instance, taken: None, call, ..e.clone() }));
        }
        for (seq, role, payload) in &self.payloads {
            for part in payload.clone().into_parts() {
                l.keep_payload(no, *seq, *role, part);
            }
        }
        Ok(())
    }

    /// Adds the run's state with its history, at positions of this store.
    fn put_state(&self, l: &mut Loaded, here: &Here) -> Result<(), Error> {
        let Some(namespace) = &self.namespace else { return Ok(()) };
        l.state.namespaces.insert(namespace.name.clone(), Row::insert(namespace.clone()));
        let mut keys: BTreeMap<Arc<Name>, Current> = BTreeMap::new();
        for version in &self.versions {
            let (name, item) = (name_of(version), &version.item);
            let position = Position(l.state.position.0 + 1);
            l.state.position = position;
            let value = item.value.as_ref().map(|value| Value::encode(value));
            let before = keys.get(&name);
            let current = Current {
                version: item.version,
                live: value.is_some(),
                position,
                commit: item.commit,
                at: item.at,
                first: before.map_or(position, |before| before.first),
                oldest: before.map_or(item.version, |before| before.oldest),
                progress: value.as_ref().and_then(Value::progress),
                moved: true,
                no: 0,
            };
            keys.insert(name.clone(), current);
            let run = item.run.map(|run| here.run(run)).transpose()?;
            let (version_no, commit, at, attempt) = (item.version, item.commit, item.at, item.attempt);
            l.state.versions.push(NewVersion {
                name,
                version: version_no,
                position,
                value,
                commit,
                at,
                run,
                attempt,
            });
            match l.state.commits.last_mut() {
                Some(last) if last.namespace == item.namespace && last.commit == commit => {
                    last.position = position;
                }
                _ => l.state.commits.push(NewCommit {
                    namespace: item.namespace.clone(),
                    commit,
                    at,
                    position,
                    transaction: version.transaction.as_deref().map(Arc::from),
                }),
            }
        }
        l.state.keys.extend(keys.into_iter().map(|(name, current)| (name, Row::insert(current))));
        Ok(())
    }
}
