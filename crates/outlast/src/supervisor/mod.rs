//! The supervisor: `outlast run` and `outlast resume`. One process per run, no daemon. See
//! docs/design/supervisor.md.

mod all;
mod beat;
mod choose;
mod confine;
mod drive;
pub(crate) mod environment;
mod front;
pub(crate) mod intercept;
mod output;
pub mod provider;
mod story;
pub mod strays;

use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use outlast_core::{
    engine::{Amend, InName, Tell, Word, state::transaction::Conflicts},
    envelope::{Refusal, Unit, Whose},
    reads::{budgets::is_room, entries, runs},
    run::{Run, Spec, Status, Unpriced},
    store::{Ask as _, Durability, RunFilter, RunView, Store},
    words::RunNo,
};

use outlast_server::node::Node;

use self::{
    choose::{check_free, is_held},
    confine::Confined,
    front::{Role, Show, TerminalOptions},
};
use crate::{
    agent::{self, Choice, inside},
    cli::{
        BudgetArgs, ResumeArgs, RunArgs,
        change::AddArgs,
        files::ResumeAt,
        shared::{GrpcArgs, ProxyArgs},
        values::KillAt,
    },
    disk::present,
    program::{
        actor::actor,
        context::Context,
        error::{BundleError, CliError, RunError},
        exit_code,
        fence::fence,
        find::{self, Verb},
        log,
        say::say,
        server,
        untaken::Untaken,
    },
    proxy_setup,
    render::{amount::some, short::called},
    settings::{budgets, env_file, keys::Keys, masks, prices, surroundings::Surroundings},
};
use outlast_process::reap;

/// Time that another supervisor has to end its agent and leave. Later the run is refused as held.
const TAKE_OVER: Duration = Duration::from_secs(60);

/// Interval at which a supervisor that takes over checks whether the other one has left.
const TAKE_OVER_LOOK: Duration = Duration::from_millis(100);

/// Flags of Outlast that people type after the command by mistake.
const OURS: [&str; 7] = ["--usd", "--tokens", "--calls", "--loops", "--wall", "--run", "--name"];

/// Prints a hint about flags of Outlast that stand after the command without a `--` before them: they go to
/// the command.
fn tell_strayed(typed: &[OsString], command: &[String]) {
    let Some((program, arguments)) = command.split_first() else { return };
    if typed.iter().take_while(|word| *word != program.as_str()).any(|word| word == "--") {
        return;
    }
    let is_ours = |word: &&String| OURS.contains(&word.split('=').next().unwrap_or_default());
    if let Some(flag) = arguments.iter().find(is_ours) {
        say(&format!(
            "note: {flag} stands behind the command and goes to it; flags of outlast stand before the command"
        ));
    }
}

/// Makes this process a supervisor; the inner error is the exit code of one that was the front of a supervisor.
fn stand_up(asked: TerminalOptions, context: &Context) -> Result<Result<Show, u8>, CliError> {
    let role = match Role::of(asked, context)? {
        Ok(role) => role,
        Err(front) => return front.run(context).map(Err),
    };
    let show = role.show(asked)?;
    log::start(&context.around, "warn");
    reap::become_subreaper()?;
    Ok(Ok(show))
}

/// Runs the command of `outlast run` to its end and returns the exit code.
pub fn run(args: RunArgs, context: Context) -> Result<u8, CliError> {
    if args.keep_files.kept().is_some() {
        crate::files::directory(&context)?;
    }
    let asked =
        TerminalOptions { pty: args.supervise.pty, detach: args.detach, no_logs: args.supervise.no_logs };
    let show = match stand_up(asked, &context)? {
        Ok(show) => show,
        Err(code) => return Ok(code),
    };
    let context = context.waiting(args.proxy.store_wait_ms).with_variables(args.env_file.as_deref())?;
    let store = context.open(true, args.proxy.durability)?;
    let parent = inside::surrounding(&context)?;
    let through = parent.as_ref().and_then(|parent| parent.proxy);
    let held = args.supervise.supervision();
    Confined::of(held.confine.as_ref(), &context, context.around.directory())?;
    intercept::check(held.intercept, held.confine.is_some(), through.is_some(), &context.around)?;
    if held.net.is_some() {
        if through.is_some() || args.grpc != GrpcArgs::default() {
            let why = "a run inside another has that one's network, and the state over gRPC is outside of it"
                .into();
            return Err(RunError::NetNotConfined { why }.into());
        }
        confine::check_net()?;
    }
    let mut keys = context.keys()?;
    if through.is_some() {
        inside::show_keys(&mut keys, &context.around);
    }
    tell_strayed(&context.typed, &args.command);
    // A typing mistake must not create a run, so everything is checked before the run exists.
    let prices = prices::to_keep(args.proxy.prices.as_deref(), &context.around)?;
    let masks = masks::load(&context.around)?;
    let fresh = proxy_setup::providers(&args.proxy, &keys, &Default::default(), &context)?;
    // What is wrong here is refused before a run is made.
    if !context.around.directory().is_dir() {
        return Err(RunError::HereIsGone.into());
    }
    server::network(&context.around)?;
    crate::mcp::configured::load(&context.around)?;
    crate::notify::endpoint::load(&context.around)?;
    let choice = Choice::read(&args.agent);
    agent::find(&choice, &args.command, &context.around)?;
    if through.is_none() {
        budgets::sync(store.as_ref(), budgets::load(&context.around)?)?;
    }
    let node = proxy_setup::join(store.clone(), &context, "outlast run")?;
    // Inside another run the environment holds that run's address and token, which are not worth keeping.
    let own = through.is_none();
    let begun_with = choose::BegunWith {
        upstreams: if own { proxy_setup::to_keep(&fresh) } else { Default::default() },
        keys: keys.names().filter(|_| own).map(str::to_owned).collect(),
        prices,
        masks,
        login: match own {
            true => agent::own_settings::login(&choice, &args.command, &keys, &context.around)?,
            false => None,
        },
        parent: parent.map(|parent| parent.run),
    };
    let left = node.clone();
    let done = (|| {
        let began = store.now()?;
        let view = choose::run(&args, &context, &node, begun_with)?;
        let kept = view.spec.command.as_ref().and_then(|command| command.env_file.as_ref());
        let (context, keys) = match kept.filter(|_| args.env_file.is_none()) {
            Some(file) => {
                let context = context.with_variables(Some(Path::new(file)))?;
                let keys = context.keys()?;
                (context, keys)
            }
            None => (context, keys),
        };
        if view.run.created_at < began {
            say_what_is_missing(&view, &context);
        }
        let served = Served {
            unpriced: None,
            grpc: args.grpc.over(view.spec.grpc.as_ref())?,
            proxy: args.proxy,
            kill_at: args.kill_at,
            grace: grace(args.grace_ms),
            through,
            show,
            files: Default::default(),
        };
        go_on(view, node, &keys, served, context)
    })();
    leave(&left, done)
}

/// Resumes the named run, or the last one of the directory; with `--all` every interrupted, sleeping or waiting run.
/// Returns the exit code.
pub fn resume(args: ResumeArgs, context: Context) -> Result<u8, CliError> {
    let context = context.waiting(args.proxy.store_wait_ms);
    if args.all {
        log::start(&context.around, "warn");
        let store = context.open(false, args.proxy.durability)?;
        let budget = BudgetArgs { add: args.add, ..BudgetArgs::default() };
        if budget.change(RunNo(0))?.is_some() || args.unpriced.is_some() {
            return Err(CliError::Usage {
                message: "a limit is added to, and --unpriced said, for one run".into(),
                hint: Some("name the run with `outlast resume RUN`".into()),
            });
        }
        if args.grpc != GrpcArgs::default() {
            say("the state of each run is served where it was when the run began: --grpc is for one run");
        }
        return resume_all(store, &context, &args.proxy, args.stay);
    }
    let asked = TerminalOptions { pty: args.pty, detach: args.detach, no_logs: false };
    let show = match stand_up(asked, &context)? {
        Ok(show) => show,
        Err(code) => return Ok(code),
    };
    let store = context.open(false, args.proxy.durability)?;
    budgets::sync(store.as_ref(), budgets::load(&context.around)?)?;
    let node = proxy_setup::join(store.clone(), &context, "outlast resume")?;
    let left = node.clone();
    let by = actor(&context.around);
    let done = (|| {
        let view =
            find::run_or_last(store.as_ref(), args.run.as_deref(), context.around.directory(), Verb::Resume)?;
        if view.run.job.is_some() && view.spec.command.is_none() {
            return Err(RunError::NoCommand { run: called(&view) }.into());
        }
        if matches!(view.run.status, Status::Completed | Status::Cancelled) {
            return Err(
                RunError::Ended { run: called(&view), status: view.run.status, verb: "resume" }.into()
            );
        }
        if view.spec.is_shell_loop() {
            return Err(RunError::LoopScript { run: called(&view) }.into());
        }
        let view = if args.take_back { taken_back(store.as_ref(), &view)? } else { view };
        let elsewhere = args.cd.as_deref().map(|to| moved(&view, to)).transpose()?;
        let command = elsewhere.as_ref().unwrap_or(&view.spec).command.as_ref();
        let file = command.and_then(|command| command.env_file.as_ref());
        let context = context.with_variables(file.map(Path::new))?;
        let keys = context.keys()?;
        all_keys_are_there(&view, &keys)?;
        let view = take_over(&node, &by, view)?;
        if view.spec.command.is_some() {
            check_free(&node, &view)?;
        }
        say_what_is_missing(&view, &context);
        let view = match elsewhere {
            Some(spec) => {
                store.ask(Amend { run: view.run.no, spec, unpriced: None }, Durability::Synced).wait()?;
                find::view(store.as_ref(), view.run.no)?
            }
            None => view,
        };
        let view = raised(store.as_ref(), &by, view, args.add)?;
        let was_stopped = view.run.stop_requested || view.run.status == Status::Halted;
        let view = say_yes(store.as_ref(), &by, view)?;
        let id = called(&view);
        if view.spec.command.is_none() && was_stopped && view.run.status != Status::Halted {
            say(&format!("{id} goes on with its next request"));
            return Ok(exit_code::OK);
        }
        if view.run.status != Status::Halted {
            say(&format!("resuming {id}"));
        }
        let served = Served {
            unpriced: args.unpriced,
            grpc: args.grpc.over(view.spec.grpc.as_ref())?,
            proxy: args.proxy,
            kill_at: None,
            grace: grace(args.grace_ms),
            through: None,
            show,
            files: (args.files, args.force.force),
        };
        go_on(view, node, &keys, served, context)
    })();
    leave(&left, done)
}

/// Adds to the limits of a run what was typed with its resumption, in the name of `by`.
fn raised(store: &dyn Store, by: &str, view: RunView, add: AddArgs) -> Result<RunView, CliError> {
    let budget = BudgetArgs { add, ..BudgetArgs::default() };
    let Some(raise) = budget.change(view.run.no)? else { return Ok(view) };
    store.ask(InName::of(by, raise), Durability::Synced).wait()?;
    let view = find::view(store, view.run.no)?;
    let is_limits = |halt: &Refusal| halt.unit.is_some() && !halt.is_accepted_by_resuming();
    if view.run.status == Status::Halted && view.run.halt.as_ref().is_some_and(is_limits) {
        say(&format!("the limits of {} are raised as typed, and it stays halted", called(&view)));
    }
    Ok(view)
}

fn grace(ms: Option<i64>) -> Option<Duration> {
    ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)
}

/// Lets a run go on here that left in a bundle. Errors: `run_not_moved`; `run_halted` for one that has arrived elsewhere.
fn taken_back(store: &dyn Store, view: &RunView) -> Result<RunView, CliError> {
    let moved = view.run.halt.as_ref().and_then(|halt| halt.moved.as_ref());
    let moved = moved.ok_or_else(|| BundleError::NotMoved { run: called(view) })?;
    if moved.has_arrived {
        return Err(halted(view));
    }
    if moved.to.is_some() {
        // Beside the store stands only what is to be sent.
        present(fs::remove_file(&moved.bundle))?;
    }
    fence(store, view, None)?;
    say(&format!("{} is taken back: {} must not be imported any more", called(view), moved.bundle));
    find::view(store, view.run.no)
}

/// Returns the spec of a run that works in the directory `to` from now on. Errors: `NoPlace`.
fn moved(view: &RunView, to: &Path) -> Result<Spec, CliError> {
    let is_directory = |path: &PathBuf| path.is_dir();
    let whole = to.canonicalize().ok().filter(is_directory);
    let whole =
        whole.ok_or_else(|| RunError::NoPlace { run: called(view), directory: to.display().to_string() })?;
    let mut spec = view.spec.clone();
    if let Some(from) = spec.command.as_ref().map(|command| command.directory.clone()) {
        spec.go_along(&from, &whole.to_string_lossy());
    }
    Ok(spec)
}

/// Lets a run go on that was halted for an unknown price, and prints a message: under the rule `unpriced`, or at the prices
/// of `--prices`, or at the person's newer ones where these know its model. Any other run stays unchanged. Returns the
/// run as it is after that.
fn mended(
    store: &dyn Store,
    view: RunView,
    args: &ProxyArgs,
    unpriced: Option<Unpriced>,
    around: &Surroundings,
) -> Result<RunView, CliError> {
    let halt = view.run.halt.as_ref().filter(|halt| halt.code == "price_unknown");
    let Some(halt) = halt.filter(|_| view.run.status == Status::Halted) else { return Ok(view) };
    let (run, id) = (view.run.no, called(&view));
    let spec = match unpriced {
        Some(Unpriced::Deny) => return Ok(view),
        Some(rule @ (Unpriced::Free | Unpriced::Dearest)) => {
            let what = match rule {
                Unpriced::Dearest => "are charged at twice the dearest known of their family",
                _ => "count as free",
            };
            say(&format!("{id} goes on: models without a known price {what} from now on"));
            view.spec.clone()
        }
        None => {
            let begun = view.spec.prices.as_ref().and_then(|kept| kept.file.as_ref());
            let file = args.prices.clone().or_else(|| begun.map(|file| PathBuf::from(&file.path)));
            let prices = prices::to_keep(file.as_deref(), around)?;
            let knows = |model: &str| prices::of_kept(&prices).is_ok_and(|t| t.lookup(model).is_some());
            let is_same = view.spec.prices.as_ref().is_some_and(|kept| kept.hash == prices.hash);
            if is_same || args.prices.is_none() && !halt.model.as_deref().is_some_and(knows) {
                return Ok(view);
            }
            let path = prices.file.as_ref().map_or("", |file| file.path.as_str());
            let before =
                begun.map_or("the built-in ones".to_owned(), |file| format!("those of {}", file.path));
            say(&format!("{id} goes on at the prices of {path}; what it paid so far was priced by {before}"));
            Spec { prices: Some(prices), ..view.spec.clone() }
        }
    };
    store.ask(Amend { run, spec, unpriced }, Durability::Synced).wait()?;
    Ok(store.run(run)?.unwrap_or(view))
}

/// Leaves the store, also after an error: open calls become unknown at once, and no process has to wait for
/// the lease to expire.
fn leave(node: &Node, done: Result<u8, CliError>) -> Result<u8, CliError> {
    let done = done.map_err(|e| e.called(node.store().as_ref()));
    let left = node.leave();
    let code = done?;
    left?;
    Ok(code)
}

/// Settings of this start: what is served for the run, and how the agent is run.
struct Served {
    proxy: ProxyArgs,
    /// Rule with which a run that was halted for an unknown price goes on; `None`: as it was started.
    unpriced: Option<Unpriced>,
    /// Address at which the state is served over gRPC, and the rule by which conflicts are decided; `None`:
    /// not served.
    grpc: Option<(SocketAddr, Conflicts)>,
    kill_at: Option<KillAt>,
    /// Time that an agent has to end by itself, when it differs from the default.
    grace: Option<Duration>,
    /// Proxy of the surrounding run if this run is its child; `None` otherwise.
    through: Option<SocketAddr>,
    show: Show,
    /// Files that are brought back before the agent starts, and paths that are taken against a refusal.
    files: (ResumeAt, Vec<String>),
}

/// Drives the run if it can go on: checks halt, command, keys and prices first.
fn go_on(
    view: RunView,
    node: Arc<Node>,
    keys: &Keys,
    served: Served,
    context: Context,
) -> Result<u8, CliError> {
    let view = mended(node.store().as_ref(), view, &served.proxy, served.unpriced, &context.around)?;
    let id = &view.run.id;
    if view.run.status == Status::Halted {
        return Err(halted(&view));
    }
    let Some(command) = &view.spec.command else {
        return Err(RunError::NoCommand { run: called(&view) }.into());
    };
    // A disk that is mounted late: nothing is claimed, and the run stays what it is.
    if !Path::new(&command.directory).is_dir() {
        return Err(RunError::NoPlace { run: called(&view), directory: command.directory.clone() }.into());
    }
    all_keys_are_there(&view, keys)?;
    still_logged_in(&view, keys, &context)?;
    let (prices, said) = prices::of_run(
        id.as_str(),
        view.spec.prices.as_ref(),
        served.proxy.prices.as_deref(),
        &context.around,
    )?;
    if let Some(said) = said {
        say(&said);
    }
    let providers = proxy_setup::providers(&served.proxy, keys, &view.spec.upstreams, &context)?;
    let (no, store, look, behind) = (view.run.no, node.store().clone(), context.look, served.show.is_behind);
    let code = drive::drive(drive::Plan { view, node, providers, prices, served, context })?;
    if look.json {
        story::end_as_json(store.as_ref(), no, code, behind)?;
    }
    Ok(code)
}

/// Checks that the provider keys the run began with are present. Without them the agent would die until it is
/// given up. Errors: `KeysMissing`.
fn all_keys_are_there(view: &RunView, keys: &Keys) -> Result<(), CliError> {
    let missing = view.spec.keys.iter().filter(|name| !keys.names().any(|n| n == name.as_str()));
    let names: Vec<String> = missing.cloned().collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(RunError::KeysMissing { run: called(view), names }.into())
}

/// Names the variables that the run began with and that are not here, before anything is started.
fn say_what_is_missing(view: &RunView, context: &Context) {
    let Some(command) = &view.spec.command else { return };
    let missing = env_file::missing(&command.variables, &command.env, &context.around);
    if !missing.is_empty() {
        let which = missing.join(", ");
        let count = some(missing.len() as i64, "variable");
        say(&format!(
            "{count} that the run began with {} missing here: {which} (`outlast run --env NAME -- CMD`, or --env-file, keeps them)",
            if missing.len() == 1 { "is" } else { "are" }
        ));
    }
}

/// Checks that a run without a limit in usd, because a subscription paid for it, is not billed now.
/// Errors: `LoginGone`.
fn still_logged_in(view: &RunView, keys: &Keys, context: &Context) -> Result<(), CliError> {
    let (Some(login), Some(command)) = (&view.spec.login, &view.spec.command) else { return Ok(()) };
    let choice = command.agent.as_deref().map_or(Choice::Auto, Choice::read);
    let now = agent::own_settings::login(&choice, &command.argv, keys, &context.around)?;
    let has_limit = view.envelope.limits[Unit::CostNanoUsd].is_some();
    if has_limit || now.is_some() || keys.names().next().is_none() {
        return Ok(());
    }
    Err(RunError::LoginGone { run: called(view), login: login.clone() }.into())
}

/// Confirms what a person accepts by resuming a run by name: a divergence or a lack of progress that halted it (printed
/// first), and the end of a requested stop in a run without a command, which no supervisor's claim ends. Returns the run
/// as it stands afterwards.
fn say_yes(store: &dyn Store, by: &str, view: RunView) -> Result<RunView, CliError> {
    let run = &view.run;
    let accept = |diverged| {
        let tell = Tell { run: run.no, word: Word::Resume { diverged } };
        store.ask(InName::of(by, tell), Durability::Synced).wait()
    };
    let halt = run.halt.as_ref().filter(|h| run.status == Status::Halted && h.is_accepted_by_resuming());
    if let Some(halt) = halt.filter(|h| h.whose.is_some()) {
        if has_room(store, halt)? {
            accept(None)?;
        }
        return find::view(store, run.no);
    }
    let is_stopped = view.spec.command.is_none() && run.status == Status::Interrupted && run.stop_requested;
    if halt.is_none() && !is_stopped {
        return Ok(view);
    }
    let mut diverged = None;
    if let Some(halt) = halt {
        say(&format!("run {} is halted ({}): {}", called(&view), halt.code, halt.message()));
    }
    if let Some(attempt) =
        store.attempts(run.no)?.last().filter(|_| halt.is_some_and(|h| h.code == "diverged"))
    {
        let mut untaken = Untaken::default();
        for entry in entries::each(store, run.no) {
            untaken.add(attempt, &entry?);
        }
        say(&format!("accepted: {untaken} may stay unused, and what it asks anew is paid"));
        diverged = Some(attempt.no);
    }
    accept(diverged)?;
    find::view(store, run.no)
}

/// Returns whether the call that was refused would fit into the budgets above the run now.
fn has_room(store: &dyn Store, refusal: &Refusal) -> Result<bool, CliError> {
    let parent = match refusal.whose {
        Some(Whose::Parent(no)) => store.run(no)?.map(|view| view.envelope),
        _ => None,
    };
    Ok(is_room(refusal, &store.budgets()?, parent.as_ref(), store.now()?))
}

/// Takes over a run whose supervisor waits until a person has fixed the key or the quota: the person who resumes the
/// run has.
fn take_over(node: &Node, by: &str, view: RunView) -> Result<RunView, CliError> {
    let (store, no) = (node.store().as_ref(), view.run.no);
    let needs_a_person = |run: &Run| run.awaited_outage().is_some_and(|(o, _)| o.cause.needs_a_person());
    if !needs_a_person(&view.run) || !is_held(node, no)? {
        return Ok(view);
    }
    say(&format!("{}: its supervisor waits for this, and ends", called(&view)));
    store.ask(InName::of(by, Tell { run: no, word: Word::Stop }), Durability::Synced).wait()?;
    let began = Instant::now();
    while is_held(node, no)? && began.elapsed() < TAKE_OVER {
        std::thread::sleep(TAKE_OVER_LOOK);
    }
    find::view(store, no)
}

/// Builds the error for a halted run: why it is halted and what lets it go on.
fn halted(view: &RunView) -> CliError {
    RunError::Halted { run: called(view), halt: view.run.halt.clone().map(Box::new) }.into()
}

/// Resumes every interrupted run, and every sleeping or waiting one that is not driven: see [`resumable`]. Starts one
/// supervisor process for each and returns the worst exit code. `stays`: goes on for runs that are interrupted later.
fn resume_all(
    store: Arc<dyn Store>,
    context: &Context,
    proxy: &ProxyArgs,
    stays: bool,
) -> Result<u8, CliError> {
    // After a reboot dead runs still say "running": wait for the verdicts first.
    let node = proxy_setup::join(store.clone(), context, "outlast resume --all")?;
    node.await_verdicts()?;
    let mut runs = resumable(store.as_ref(), Status::Interrupted)?;
    // A run that sleeps or waits normally has a live supervisor, which goes on with it.
    for status in [Status::Sleeping, Status::Waiting] {
        for view in resumable(store.as_ref(), status)? {
            runs.extend((!is_held(&node, view.run.no)?).then_some(view));
        }
    }
    runs.sort_by_key(|v| v.run.no);
    node.leave()?;
    drop(node);
    if stays {
        return all::stay(store, runs, context, proxy);
    }
    drop(store);
    all::resume(&runs, context, proxy)
}

/// Returns the runs of a status that have a command and were not stopped by a person.
fn resumable(store: &dyn Store, status: Status) -> Result<Vec<RunView>, CliError> {
    let mut found = Vec::new();
    for view in runs::each(store, RunFilter { status: Some(status), ..RunFilter::default() }) {
        let view = view?;
        // A fork begins when a person resumes it.
        let is_begun = view.run.origins.is_empty() || view.run.began_at.is_some();
        if view.spec.command.is_some() && !view.run.stop_requested && is_begun {
            // The parent, if it goes on, starts its child runs again itself.
            let parent = view.run.parent.map(|p| store.run(p)).transpose()?.flatten();
            if parent.is_none_or(|p| p.run.status.is_ended()) {
                found.push(view);
            }
        }
    }
    Ok(found)
}
