//! Consecutive attempts of an agent: the arguments that each starts with, and what its end tells.

pub mod fork;
mod notes;

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    io::IsTerminal as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use outlast_core::{
    engine::{Actor, checkpoint},
    envelope::Unit,
    journal::Kind,
    run::{NOBODYS, Origin, Record},
    store::{self, Ask as _, Durability, RunView, Store},
    words::{AttemptNo, RunNo, Seq, clock::random},
};
use outlast_process::exit::Exit;
use outlast_server::{dialect::Upstream, door::Providers};

use super::{
    Adapter, Choice, KeptCalls, Names, Reading, With, hook,
    line::Line,
    note,
    open_calls::{self, Resumption, SearchScope},
    servers::{self, Handed},
    session::{self, Session},
    transcript::{self, Kept, Mended},
    truth::{self, Left},
};
use crate::{
    disk,
    files::history::Effect,
    program::{context::Context, error::CliError, run_directory::RunDirectory, say::say, told},
    settings::keys,
};

/// Number of resumptions in a row that exit with 1 and make no request, after which the session is given up.
const FUTILE: u32 = 2;

/// Arguments with which an attempt starts its agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    pub argv: Vec<String>,
    /// Whether the agent resumes a session. The standard input of the first attempt has then been read already.
    pub resumes: bool,
    pub headless: bool,
}

/// Agent of a run, started again in each attempt.
pub struct Conduct {
    adapter: Box<dyn Adapter>,
    line: Line,
    reading: Reading,
    with: With,
    run: RunNo,
    /// Name of the agent, where a run has several; `None` for the agent of the run's own command.
    name: Option<String>,
    /// Working directory of the agent, on which its sessions and the user's relative paths depend.
    directory: PathBuf,
    run_files: RunDirectory,
    files: PathBuf,
    transcripts: Option<PathBuf>,
    /// Part of another run that the run shares; `None` for a run that is no fork.
    origin: Option<Origin>,
    /// Name of the checkpoint in which the run stores the agent's session.
    key: checkpoint::Name,
    session: Option<Session>,
    resumed: bool,
    /// Requirements on the resumed attempt's first request; `None` for an attempt that resumes nothing.
    resumption: Option<Arc<Resumption>>,
    futile: u32,
    remarked: bool,
    /// Tool calls whose files were taken away before the attempt, which its model is told of.
    pub undone: Vec<Effect>,
    /// Whether the agent's MCP servers are recorded (`--mcp`).
    records_servers: bool,
    /// Whether the run keeps what its agent says: its requests, and its session's files.
    keeps_files: bool,
}

/// Name, command line and working directory of an agent.
pub struct AgentCommand<'a> {
    pub name: Option<String>,
    pub argv: &'a [String],
    pub directory: &'a Path,
}

impl Conduct {
    /// Recognizes the agent that a run's command starts, directly or through a script. Returns `None` if no known agent
    /// is found.
    ///
    /// Errors: `--agent` names an adapter that does not exist; settings that cannot be read.
    pub fn of(
        view: &RunView,
        choice: &Choice,
        place: AgentCommand<'_>,
        providers: Option<&Providers>,
        context: &Context,
    ) -> Result<Option<Conduct>, CliError> {
        let Some((adapter, line)) = super::find(choice, place.argv, &context.around)? else {
            return Ok(None);
        };
        let piped = !std::io::stdout().is_terminal();
        let reading = adapter.read(&line, piped);
        // In a script, the variables given to the run's own command show which keys are replaced.
        let shows_token = |name: &str| {
            let key = context.around.var(name).and_then(|k| k.to_str());
            key.is_some_and(outlast_core::run::token::looks_like_token)
        };
        let has_key = |upstream: Upstream| match providers {
            Some(providers) => providers.of(upstream).key.is_some(),
            None => shows_token(keys::variable(upstream)),
        };
        let with = With {
            has_openai_key: has_key(Upstream::OpenAi),
            has_anthropic_key: has_key(Upstream::Anthropic),
            has_usd_limit: view.envelope.limits[Unit::CostNanoUsd].is_some() || view.run.charges.len() > 1,
            name: place.name.clone(),
            piped,
            is_anthropic: providers.map_or_else(
                || !view.spec.upstreams.contains_key("anthropic"),
                |p| p.of(Upstream::Anthropic).base == Upstream::Anthropic.row().base(),
            ),
            is_intercepted: context.around.is_set(told::INTERCEPTED)
                || view.spec.command.as_ref().is_some_and(|c| c.supervision.intercept),
            warm: view.spec.command.as_ref().is_some_and(|c| c.supervision.warm_resume),
            logins: adapter.logins(&context.around),
            ..With::default()
        };
        let run_files = RunDirectory::of(&context.place, &view.run.id, &context.around)?;
        let mut files = run_files.agent();
        files.extend(&place.name);
        Ok(Some(Conduct {
            transcripts: adapter.transcripts(&context.around),
            adapter,
            line,
            reading,
            with,
            run: view.run.no,
            name: place.name,
            directory: place.directory.to_owned(),
            files,
            run_files,
            origin: view.run.origins.first().copied(),
            key: checkpoint::Name::default(),
            session: None,
            resumed: false,
            resumption: None,
            futile: 0,
            remarked: false,
            undone: Vec::new(),
            records_servers: view.spec.command.as_ref().is_none_or(|c| !c.supervision.mcp_off),
            keeps_files: view.run.policy.record == Record::All,
        }))
    }

    pub fn adapter(&self) -> &dyn Adapter {
        self.adapter.as_ref()
    }

    /// Decides with which arguments the attempt of `actor` starts, and changes its environment `env`.
    ///
    /// Durable when it returns: a session id that Outlast chose, and the outcome of the tools that the attempt before
    /// left in flight.
    ///
    /// `strays`: tools' processes left by a dead supervisor, which were ended just now.
    pub async fn launch(
        &mut self,
        store: &dyn Store,
        actor: Actor,
        env: &mut BTreeMap<OsString, OsString>,
        strays: &[Left],
        context: &Context,
    ) -> Result<Launch, store::Error> {
        let url = env.get(OsStr::new("OPENAI_BASE_URL"));
        self.with.openai_url = url.map(|url| url.to_string_lossy().into_owned()).unwrap_or_default();
        self.adapter.environment(&self.line, env, &self.with);
        (self.with.files, self.with.note) = (self.files(), None);
        let knows_store = env.get(OsStr::new(told::STORE)).is_some_and(|store| !store.is_empty());
        self.with.settings = self.settings(knows_store);
        self.with.servers = self.servers(store, actor, knows_store, context).await?;
        if self.with.warm && self.with.settings.is_some() {
            env.insert(hook::GIT.into(), "1".into());
        }
        if !std::mem::replace(&mut self.remarked, true) {
            self.adapter.remarks(&self.line, &self.with).iter().for_each(|remark| say(remark));
        }
        let attempts = store.attempts(self.run)?;
        let iteration = attempts.iter().find(|a| a.no == actor.attempt).map_or(0, |a| a.iteration);
        self.key = session::key(self.name.as_deref(), iteration);
        self.session = session::find(store, self.run, &self.key)?;
        let inherited = match self.origin {
            Some(origin) => self.part(store, actor, origin, context).await?,
            None => None,
        };
        self.mend(store);
        self.go_along(store, actor).await?;
        let before = truth::last_that_called(store, self.run, actor.attempt)?;
        let before = before.filter(|a| a.iteration == iteration);
        let end = notes::newest_end(&attempts, actor.attempt, iteration);
        let end = end + &note::undone(&std::mem::take(&mut self.undone));
        let goes_on = self.goes_on(before.is_some());
        (self.resumed, self.resumption) = (goes_on.is_some(), None);
        let kept = self.kept_calls(goes_on.as_deref());
        if let (Some(before), Some(kept)) = (&before, &kept) {
            truth::give_back_unkept(store, self.run, before.no, kept).await?;
        }
        let fork = self.origin.filter(|_| before.is_none());
        let Some(known) = goes_on else {
            if let Some(before) = &before {
                self.tell_anew(store, actor, (before.no, kept.as_ref(), &end), strays, env).await?;
            } else if let (Some(origin), Some(theirs)) = (fork, inherited) {
                self.tell_conversation(store, origin, &theirs.id, env)?;
            }
            let chosen = self.choose(store, actor, context).await?;
            let argv = self.adapter.begin(&self.line, &self.with, chosen.as_deref());
            return Ok(Launch { argv, resumes: false, headless: self.reading.headless });
        };
        let mut told = Vec::new();
        if let Some(no) = before.as_ref().map(|before| before.no).or(fork.map(|_| NOBODYS)) {
            let of = SearchScope { kept: kept.as_ref(), ..self.searched(no, &known) };
            told = truth::settle(store, actor, &of, strays).await?;
        }
        if before.is_some() {
            let mut resumption = Resumption::before(
                store,
                (self.run, actor.attempt),
                self.searched(actor.attempt, &known).session,
            )?;
            resumption.told(&told);
            self.resumption = Some(Arc::new(resumption));
        }
        let note = match fork {
            Some(origin) => note::words_of_fork(&self.point(store, origin)?, &told),
            None => note::words(&end, &told),
        };
        let about = notes::in_flight(told.len(), self.adapter.tells(&self.line));
        say(&format!("{} goes on in its session {known}{about}", self.adapter.name()));
        if !self.reading.headless {
            self.leave_note(&note, env);
        }
        let theirs = inherited.map(|theirs| theirs.id).filter(|_| fork.is_some());
        self.with.model = self.model(store, fork, theirs.as_deref().unwrap_or(&known))?;
        let argv = self.adapter.resume(&self.line, &self.with, &known, &note);
        Ok(Launch { argv, resumes: true, headless: self.reading.headless })
    }

    /// Returns where the tool calls of an attempt are searched for: in the calls of `session`, where its requests name it.
    fn searched<'s>(&self, attempt: AttemptNo, session: &'s str) -> SearchScope<'s> {
        let is_named = self.adapter.row().bodies_name_session && !session.is_empty();
        SearchScope::new(self.run, attempt, is_named.then_some(session))
    }

    /// Returns the tool calls in the file of the session that goes on; none if a new one is begun. `None` if the file's
    /// place or format is not known.
    fn kept_calls(&self, goes_on: Option<&str>) -> Option<KeptCalls> {
        self.transcripts.as_ref()?;
        let kept = goes_on.and_then(|session| self.transcript_text(session)).unwrap_or_default();
        self.adapter.kept_calls(&kept)
    }

    /// Returns the text of a session's file.
    fn transcript_text(&self, session: &str) -> Option<String> {
        let bytes = std::fs::read(super::transcript(self.transcripts.as_ref()?, session)?).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the agent's session, unless it has been given up.
    fn known(&self) -> Option<&Session> {
        self.session.as_ref().filter(|session| !session.spoiled)
    }

    /// Returns the session whose files are copied into the store; `None` if there is no session or no known directory
    /// of its files, or if the run does not record prompts.
    pub fn kept(&self) -> Option<Kept> {
        let session = self.known().filter(|_| self.keeps_files)?;
        Some(Kept { run: self.run, session: session.id.clone(), directory: self.transcripts.clone()? })
    }

    /// Copies the agent's session files into the store, under the attempt of `actor`, and holds a resumed session's first
    /// request against the last one, until the result is dropped. Returns `None` if the agent keeps no session files.
    pub fn follow(
        &self,
        store: Arc<dyn Store>,
        actor: Actor,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let directory =
            self.transcripts.clone().filter(|_| self.keeps_files && self.reading.names != Names::Nothing)?;
        let (run, key) = (self.run, self.key.clone());
        let kept = move |store: &dyn Store| {
            let session = session::find(store, run, &key)?.filter(|session| !session.spoiled);
            Ok(session.map(|session| Kept { run, session: session.id, directory: directory.clone() }))
        };
        let compared = self.resumption.clone().map(|r| r.follow(store.clone(), self.adapter.name().into()));
        let copied = transcript::follow(store, actor, kept, move |store| metered(store, run, actor.attempt));
        Some(async move {
            let compared = async {
                if let Some(compared) = compared {
                    compared.await;
                }
            };
            tokio::join!(compared, copied);
        })
    }

    /// Restores session files that are damaged or gone, and prints which.
    fn mend(&self, store: &dyn Store) {
        let Some(kept) = self.kept() else { return };
        let mended = kept.mend(store).unwrap_or_else(|e| {
            say(&format!("session files could not be checked: {e}"));
            Vec::new()
        });
        for Mended { path, damaged } in mended {
            let (was, beside) = match damaged {
                Some(beside) => ("damaged", format!(" (it is {})", beside.display())),
                None => ("gone", String::new()),
            };
            say(&format!("the session file {} was {was}, and is put back{beside}", path.display()));
        }
    }

    /// Moves the session's files to where the program looks for them, if its run works in another directory than before.
    async fn go_along(&mut self, store: &dyn Store, actor: Actor) -> Result<(), store::Error> {
        let to = self.directory.to_string_lossy().into_owned();
        let both = self.known().cloned().zip(self.transcripts.clone());
        let Some((session, directory)) = both else { return Ok(()) };
        let Some(from) = session.directory.as_deref().filter(|from| *from != to) else { return Ok(()) };
        let kept = Kept { run: self.run, session: session.id.clone(), directory };
        if let Err(e) = kept.go_along(store, actor, from, &to).await {
            say(&format!("the session's files could not go along to {to}: {e}"));
            return Ok(());
        }
        self.keep(store, actor).await;
        let session = Session { directory: Some(to), ..session };
        store.ask(session::keep(actor, self.key.clone(), &session), Durability::Synced).await?;
        self.session = Some(session);
        Ok(())
    }

    /// Copies into the store what the session's files have gained, if the attempt made calls.
    async fn keep(&self, store: &dyn Store, actor: Actor) {
        let Some(kept) = self.kept() else { return };
        if let Err(e) = kept.keep(store, actor).await {
            say(&format!("the session's files could not be copied: {e}"));
        }
    }

    /// Returns the id of the session to resume; `None` if no session has begun.
    fn goes_on(&self, called: bool) -> Option<String> {
        // A session that we choose is kept before an agent first starts.
        let id = &self.known().filter(|_| self.reading.names != Names::Nothing)?.id;
        // A session that the user named existed before: only a call shows that the prompt was read.
        if matches!(self.reading.names, Names::Resumed(_)) && !called {
            return None;
        }
        let begun = match &self.transcripts {
            Some(_) => self.transcript_text(id).is_some_and(|text| self.adapter.row().is_begun(&text)),
            // If the agent has printed its session id itself, the session has begun, wherever its calls went.
            None => called || self.adapter.patterns().session.is_some(),
        };
        begun.then(|| id.clone())
    }

    /// Returns the id of a new session, if we choose it. Durable before it returns. A known id is reused
    /// while it has no file.
    async fn choose(
        &self,
        store: &dyn Store,
        actor: Actor,
        context: &Context,
    ) -> Result<Option<String>, store::Error> {
        // Claude Code refuses to begin a session that has a file, even an empty one.
        let is_taken =
            |id: &str| self.transcripts.as_ref().is_some_and(|d| super::transcript(d, id).is_some());
        let id = match (&self.reading.names, self.known()) {
            (Names::Session(id) | Names::Resumed(id), _) => id.clone(),
            (Names::Ours, Some(known)) if !is_taken(&known.id) => return Ok(Some(known.id.clone())),
            (Names::Ours, _) => session::uuid(random(context.entropy.as_ref())),
            (Names::Theirs | Names::Nothing, _) => return Ok(None),
        };
        if self.known().is_none_or(|known| known.id != id) {
            let directory = Some(self.directory.to_string_lossy().into_owned());
            let new = Session { id: id.clone(), spoiled: false, directory };
            store.ask(session::keep(actor, self.key.clone(), &new), Durability::Synced).await?;
        }
        Ok(Some(id))
    }

    /// Makes the directory in which the run keeps the agent's session. `None` if the agent's program keeps its sessions
    /// elsewhere, or if the directory cannot be made.
    fn files(&self) -> Option<PathBuf> {
        if !self.adapter.row().session_with_run {
            return None;
        }
        let made = self.run_files.make().and_then(|()| std::fs::create_dir_all(&self.files));
        made.map_err(|e| say(&format!("no directory for {}'s session: {e}", self.adapter.name()))).ok()?;
        Some(self.files.clone())
    }

    /// Writes settings with our hooks and returns the file. `None` without access to the store: hooks could
    /// record nothing.
    fn settings(&self, knows_store: bool) -> Option<PathBuf> {
        if !knows_store || !self.adapter.has_hooks(&self.line) {
            return None;
        }
        let theirs = self.adapter.settings(&self.line);
        let installed =
            self.run_files.make().and_then(|()| crate::program()).map_err(|e| e.to_string()).and_then(
                |program| {
                    hook::install(&self.files, &self.directory, theirs.as_deref(), &program, self.with.warm)
                        .map_err(|e| e.to_string())
                },
            );
        // The agent runs without hooks too: then less is known of its tools.
        installed.map_err(|e| say(&format!("no hooks for {}: {e}", self.adapter.name()))).ok()
    }

    /// Puts a recorder before the agent's MCP servers, and returns the values by which it is told. Keeps with the run, for
    /// people, which servers are recorded. Without access to the store a recorder could not start.
    async fn servers(
        &self,
        store: &dyn Store,
        actor: Actor,
        knows_store: bool,
        context: &Context,
    ) -> Result<Vec<String>, store::Error> {
        if !self.records_servers {
            return Ok(Vec::new());
        }
        let Ok(program) = crate::program() else { return Ok(Vec::new()) };
        let machine = Path::new("/etc");
        let place = servers::StartContext {
            around: &context.around,
            directory: &self.directory,
            machine,
            program: &program,
        };
        let mut found = self.adapter.servers(&self.line, place);
        if !knows_store {
            found = found.confined();
        }
        let handed = match found.handed {
            Handed::Nothing => Vec::new(),
            Handed::Words(words) => words,
            Handed::File(config) => {
                let path = self.files.join("mcp.json");
                let written =
                    self.run_files.make().and_then(|()| disk::write(&path, config.to_string().as_bytes()));
                if let Err(e) = written {
                    say(&format!("no MCP server is recorded: cannot write {}: {e}", path.display()));
                    return Ok(Vec::new());
                }
                vec![path.to_string_lossy().into_owned()]
            }
        };
        let before = servers::find(store, self.run, self.name.as_deref())?;
        if before.unwrap_or_default() != found.told {
            found.told.words().iter().for_each(|words| say(words));
            store.ask(servers::keep(actor, self.name.as_deref(), &found.told), Durability::Synced).await?;
        }
        Ok(handed)
    }

    /// Records the outcome of the agent's tools after it has ended. Call it before the attempt is ended in the store.
    ///
    /// `has_asked`: the agent was seen to make a request. `so_far`: bytes of its answers that still arrive, by their
    /// calls' entries.
    pub async fn ended(
        &mut self,
        store: &dyn Store,
        actor: Actor,
        (exit, left): (Exit, &[Left]),
        has_asked: bool,
        so_far: Option<&HashMap<Seq, Vec<u8>>>,
    ) -> Result<(), store::Error> {
        if self.reading.names == Names::Nothing {
            return Ok(());
        }
        // If another process's proxy serves us, only the journal shows requests.
        let metered = has_asked || metered(store, self.run, actor.attempt)?;
        if !metered {
            say(&format!(
                "NOTHING METERED: {} asked the proxy for nothing in this attempt",
                self.adapter.name()
            ));
        }
        if let Some(resumption) = &self.resumption {
            resumption.tell(store, self.adapter.name())?;
        }
        self.session = session::find(store, self.run, &self.key)?;
        self.futile = if self.resumed && !metered && exit == Exit::code(1) { self.futile + 1 } else { 0 };
        if self.futile >= FUTILE
            && let Some(known) = &self.session
        {
            say(&format!("session {} cannot be gone on with; a new one is begun", known.id));
            let spoiled = Session { spoiled: true, ..known.clone() };
            store.ask(session::keep(actor, self.key.clone(), &spoiled), Durability::Synced).await?;
            self.futile = 0;
        }
        // Without a call nothing was said; and a copy alone is no progress of an agent that dies at its start.
        if metered {
            self.keep(store, actor).await;
        }
        // An agent that has finished has nothing in flight. For an agent in a script the supervisor records
        // the outcome, because it ends the processes.
        let session = self.session.as_ref().map_or("", |s| s.id.as_str());
        let of = SearchScope { so_far, ..self.searched(actor.attempt, session) };
        if exit == Exit::code(0) {
            truth::close_answered(store, actor, &of, &open_calls::find(store, &of, &[])?).await?;
        } else if self.name.is_none() {
            truth::settle(store, actor, &of, left).await?;
        }
        Ok(())
    }
}

/// Returns whether an attempt made any call, paid or replayed.
fn metered(store: &dyn Store, run: RunNo, attempt: AttemptNo) -> Result<bool, store::Error> {
    Ok(truth::newest_entries(store, run)?
        .iter()
        .any(|e| e.kind == Kind::Call && (e.attempt == attempt || e.delivered_to == Some(attempt))))
}
