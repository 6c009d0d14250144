//! Start of a supervisor: its proxy, tools, network and deliverer, before the first attempt; and the state under a run, over
//! gRPC, whose writes carry the run, its attempt and its fence.
//!
//! The published client of the state shows no credential. So a caller that shows none is known by the user who owns its
//! end of the connection, as the kernel tells.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use outlast_core::{
    engine::{Actor, state::transaction::Conflicts},
    run::token::{self, Claims},
    store::{RunView, Store},
    words::{InstanceNo, RunId, RunNo, Seq},
};
use outlast_process::{
    cgroup::ParentGroup,
    exit::Backoff,
    proc_table,
    signals::{ENDING, Signals},
    sockets,
    spawn::Spawner,
    terminal::Terminal,
};
use outlast_server::{
    door::{Access, Observer, Proxy, Seen},
    grpc,
    node::Node,
    state::{StateDesk, Writer},
};
use tokio::{net::TcpListener, sync::mpsc};

use super::{Driver, Plan, attempt::KillPoint, live, waits};
use crate::{
    agent::{
        Choice,
        conduct::{AgentCommand, Conduct},
        daemons,
        session::Capture,
    },
    cli::files::ResumeAt,
    files::{
        Files,
        history::{History, last_call},
        keeper::{Keeper, Target},
        of_run,
    },
    mcp::{configured as mcp, host::Serving},
    notify::{
        Delivering,
        endpoint::{self as notify, Endpoint},
    },
    program::{
        context::Context,
        error::{CliError, FilesError, MachineError, RunError},
        mark::{self, Mark},
        patient::Patient,
        run_directory::RunDirectory,
        say::say,
        server,
    },
    proxy_setup,
    render::short::called,
    supervisor::{
        Served,
        beat::Beat,
        confine::{self, Confined, Net},
        front::Behind,
        intercept::Interception,
        provider,
    },
};

/// Longest time that calls in flight may go on after the agent has ended, so that paid answers are recorded.
const DRAIN: Duration = Duration::from_secs(120);

/// Address of the run's own proxy: a free port on loopback.
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Driver {
    /// Prepares everything that the run's attempts share, and begins to serve the run's proxy.
    pub(super) async fn start(plan: Plan) -> Result<Driver, CliError> {
        let Plan { view, node, providers, prices, served, context } = plan;
        let Served { proxy: flags, unpriced: _, grpc, kill_at, grace, through, show, files } = served;
        let store = node.store().clone();
        let command = view.spec.command.clone().ok_or_else(|| RunError::NoCommand { run: called(&view) })?;
        let asked = command.supervision.confine.as_ref();
        let confined = Confined::of(asked, &context, Path::new(&command.directory))?;
        let listener = TcpListener::bind(LOOPBACK).await.map_err(|why| MachineError::Listen {
            address: LOOPBACK,
            why,
            flag: None,
        })?;
        let address = listener.local_addr()?;
        let access = Access { loopback: true, only_run: Some(view.run.no), ..Access::default() };
        // Its own variables first: a person may have kept some with `--env`.
        let network = server::network(&context.around.clone().with(command.env.clone()))?;
        let mut config = proxy_setup::config(
            &flags,
            access,
            providers.clone(),
            network.clone(),
            prices,
            view.envelope.limits,
            view.run.policy,
        );
        config.groups = Some(Arc::new(proc_table::groups_below_self));
        let (sender, seen) = mpsc::unbounded_channel();
        let capture = Capture::start(store.clone());
        let (files, restore) = keeper(&view, &context, store.clone(), files)?;
        let taker = files.clone();
        let observer: Observer = Arc::new(move |s: &Seen| {
            capture.saw(s);
            taker.iter().for_each(|taker| taker.saw(s));
            // Between attempts nobody reads these.
            let _ = sender.send(s.clone());
        });
        let state = match grpc {
            Some((address, conflicts)) => Some(
                StateFace::start((view.run.no, &view.run.id), address, conflicts, &node, &context).await?,
            ),
            None => None,
        };
        let directory = own_directory(&view, &context);
        let interception = Interception::begin(
            &providers,
            network.clone(),
            &command,
            directory.as_ref(),
            through.is_some(),
            &context,
        )?;
        let face = Proxy::new(node.clone(), &context.entropy, config, Some(observer))?;
        let servers = mcp::load(&context.around)?;
        let tools = Serving::begin(servers, &context, store.clone());
        let face = match &tools {
            Some(tools) => face.with_mcp(tools.front.clone()),
            None => face,
        };
        let face = interception.on(face);
        let port = address.port();
        let net = match &command.supervision.net {
            Some(allowed) => {
                let ways = confine::ways(allowed, &context.around, Path::new(&command.directory))?;
                Some(Net::begin(face.clone(), port, ways, context.entropy.as_ref())?)
            }
            None => None,
        };
        let (shutdown, stop) = tokio::sync::oneshot::channel::<()>();
        let proxy = face.clone();
        let serving = tokio::spawn(face.serve(
            listener,
            async {
                let _ = stop.await;
            },
            DRAIN,
        ));
        // Inside another run, that run's proxy serves ours: it has the keys.
        let address = through.unwrap_or(address);
        let place =
            AgentCommand { name: None, argv: &command.argv, directory: Path::new(&command.directory) };
        let choice = command.agent.as_deref().map(Choice::read).unwrap_or_default();
        let conduct = Conduct::of(&view, &choice, place, Some(&providers), &context)?;
        let program = conduct.as_ref().map(|conduct| conduct.adapter().name());
        if net.is_none() && through.is_none() {
            tell_daemons(program, command.supervision.intercept, &context)?;
        }
        let stdin = live::kept_stdin(store.as_ref(), &view, &command)?;
        let mark = Mark::new(&view, &store.token_keys()?);
        if show.is_behind {
            Behind::let_go(directory.as_ref().map(|own| own.said()).as_deref())?;
        }
        let signals = Signals::install()?;
        let beat = Beat::start(node.clone(), view.run.no);
        let mut told = notify::load(&context.around)?;
        let on_halt = &command.supervision.on_halt;
        if !on_halt.is_empty() {
            told.endpoints.push(Endpoint::on_halt(view.run.no, &view.run.id, on_halt));
        }
        let telling = Delivering::start(told, &context, &network, store.clone(), node.clone());
        tokio::spawn(waits::heed(store.clone(), view.run.no, beat.word(), proxy.clone()));
        Ok(Driver {
            directory,
            proxy,
            show,
            ground: ParentGroup::find().inspect(|ground| ground.tidy(mark::GROUPS)).ok(),
            oom: false,
            unread: 0,
            refused: None,
            listening: None,
            mark,
            stdin,
            command,
            confined,
            address,
            spawner: Spawner::start()?,
            store: Arc::new(Patient::new(store, signals.peek(&ENDING))),
            signals,
            beat,
            seen,
            kill_at: kill_at.map(KillPoint::new),
            grace,
            backoff: Backoff::default(),
            lived: Duration::ZERO,
            outage_rules: provider::Rules::of(&flags),
            asked: 0,
            outage: provider::CurrentOutage::new(format!("`outlast resume {}`", called(&view))),
            telling,
            tools,
            cleared: None,
            died: None,
            iteration: None,
            said_no_git: false,
            state,
            shutdown: Some(shutdown),
            serving,
            terminal: Terminal::of_stdin(),
            conduct,
            interception,
            net,
            strays: Vec::new(),
            files,
            restore,
            view,
            node,
            context,
            providers,
        })
    }
}

/// Starts the taker of snapshots, and finds the files that `asked` means.
///
/// What another machine took is not here: as it died, the run goes on with its newest snapshot. Errors: `NotKept` if files
/// are asked for and none are kept; `NoSnapshot`.
fn keeper(
    view: &RunView,
    context: &Context,
    store: Arc<dyn Store>,
    (asked, force): (ResumeAt, Vec<String>),
) -> Result<(Option<Keeper>, Option<Target>), CliError> {
    let run = || called(view);
    let Some((kept, directory)) = of_run(view) else {
        return match asked {
            ResumeAt::AsDied => Ok((None, None)),
            ResumeAt::LastTool | ResumeAt::Entry(_) => Err(FilesError::NotKept { run: run() }.into()),
        };
    };
    let history = History::read(store.as_ref(), view.run.no)?;
    let files = Files::open(context, &view.run.id, kept, directory, true)?;
    let is_elsewhere = history.is_elsewhere(&files);
    let (found, when) = match asked {
        ResumeAt::AsDied if is_elsewhere => (history.newest().map(|step| step.kept.snapshot), String::new()),
        ResumeAt::AsDied => return Ok((Some(Keeper::start(files, store, &history)?), None)),
        ResumeAt::LastTool => {
            (history.at_last_tool(last_call(store.as_ref(), view)?), "of its last tool".to_owned())
        }
        ResumeAt::Entry(entry) => (history.at(Seq(entry)), format!("of before entry {entry}")),
    };
    let snapshot = found.ok_or_else(|| FilesError::NoSnapshot { run: run(), when })?;
    let known = match is_elsewhere {
        true => None,
        false => files.known(store.as_ref(), view.run.no, &history)?,
    };
    let undone = history.called_since(store.as_ref(), view.run.no, &snapshot)?;
    let target = Target { snapshot, known, force, undone, is_elsewhere };
    Ok((Some(Keeper::start(files, store, &history)?), Some(target)))
}

/// Names the background servers of CLI agents that live outside of the run, where its programs may meet them: `program`,
/// and whatever a run that is intercepted starts.
fn tell_daemons(program: Option<&str>, intercepted: bool, context: &Context) -> Result<(), CliError> {
    for (row, directory) in daemons::alive(&context.around)? {
        if intercepted || program == Some(&row.name) {
            let (name, directory) = (&row.name, directory.display());
            say(&format!(
                "note: a background server of {name} lives outside of this run ({directory}); what a script hands over to it \
                 is not metered"
            ));
            say(&format!("hint: `{}` ends it; `--confine-net` hides it", row.daemon_ended_by));
        }
    }
    Ok(())
}

/// Makes the run's own directory. If that fails, the failure is reported and the run goes on without.
fn own_directory(view: &RunView, context: &Context) -> Option<RunDirectory> {
    let cannot = |e: String| say(&format!("the run has no directory for its logs: {e}"));
    let own = RunDirectory::of(&context.place, &view.run.id, &context.around)
        .map_err(|e| cannot(e.to_string()))
        .ok()?;
    own.make().map_err(|e| cannot(format!("{}: {e}", own.path().display()))).ok()?;
    Some(own)
}

/// Server of a run's state over gRPC, which ends with the runtime.
pub struct StateFace {
    desk: Arc<StateDesk>,
    address: SocketAddr,
}

impl StateFace {
    /// Starts serving at `address`, which must be on loopback, to processes of our own user and to whoever shows a token of
    /// the run. Nothing can be written before [`StateFace::drive`].
    ///
    /// Errors: `ListenForState` if the address is not available; nothing was started then.
    pub async fn start(
        run: (RunNo, &RunId),
        address: SocketAddr,
        conflicts: Conflicts,
        node: &Node,
        context: &Context,
    ) -> Result<StateFace, CliError> {
        let cannot =
            |why: std::io::Error| MachineError::ListenForState { address, why, run: run.1.to_string() };
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let desk = StateDesk::new(node, context.entropy.clone(), conflicts, Writer::Run(None));
        let (no, store) = (run.0, node.store().clone());
        let lets_in = move |shown: &str, peer| is_ours(peer, address) || is_runs(shown, no, &*store);
        let admission = grpc::Admission::By(Box::new(lets_in));
        let served = grpc::serve(desk.clone(), listener, admission, std::future::pending());
        tokio::spawn(async move {
            if let Err(e) = served.await {
                tracing::warn!(error = %e, "the state is not served any more");
            }
        });
        Ok(StateFace { desk, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets the open attempt write to the state from now on.
    pub fn drive(&self, claims: Claims, instance: InstanceNo) {
        let actor = Actor { run: claims.run, attempt: claims.attempt, instance };
        self.desk.drive(Some((actor, claims.slot)));
    }

    /// Refuses writes from now on, because the attempt is over. Its open transactions are aborted.
    pub fn rest(&self) {
        self.desk.drive(None);
    }
}

/// Returns whether a caller's end of a connection to `here` belongs to our own user.
fn is_ours(peer: Option<SocketAddr>, here: SocketAddr) -> bool {
    let owner = peer.and_then(|peer| sockets::tcp_owner(peer, here).ok().flatten());
    owner == Some(rustix::process::geteuid().as_raw())
}

/// Returns whether a caller has shown a token of the run.
fn is_runs(shown: &str, run: RunNo, store: &dyn Store) -> bool {
    let keys = store.token_keys().unwrap_or_default();
    token::verify(shown, &keys).is_ok_and(|claims| claims.run == run)
}
