//! An agent whose supervisor is cut off from a store that hosts share: it stands still before another host takes its run
//! over, and goes on or is killed when it is known whether one has.
//!
//! Durations are those of the product: an agent stands still after 8 s, and another host takes over after 15 s. What is
//! checked is an order, whatever the machine's load.

use crate::{
    agents::shell,
    bed::{Proc, children, each, kill, runs, until},
    hosts::Hosts,
};

const STOP: i32 = 19;
const CONT: i32 = 18;

/// Works in its own process and in one that left its session, and writes its attempt, the run's fence, at each effect.
/// The second life ends when it may.
const WORKER: &str = r#"
export OUTLAST_ATTEMPT
cat > ../work.sh <<'END'
while [ ! -e ../go ] || [ $OUTLAST_ATTEMPT = 1 ]; do echo $OUTLAST_ATTEMPT >> ../log; sleep 0.02; done
END
[ $OUTLAST_ATTEMPT = 2 ] || setsid sh ../work.sh &
[ ! -e ../go ] || exit 0
exec sh ../work.sh"#;

/// Starts the run on the first host, and waits until it works.
fn start(hosts: &Hosts) -> Proc {
    let run = hosts.bed.start(hosts.first(shell(&hosts.bed, &["--run", "r"], WORKER)));
    until_works(hosts, "1", 20);
    run
}

fn effects(hosts: &Hosts) -> Vec<String> {
    hosts.bed.text("log").lines().map(str::to_owned).collect()
}

/// Waits until the life with this fence has had so many effects.
fn until_works(hosts: &Hosts, fence: &str, count: usize) {
    let wanted = format!("{count} effects of {fence}");
    let had = || effects(hosts).iter().filter(|line| *line == fence).count();
    until(&wanted, || (had() >= count).then_some(()));
}

/// All processes below this one.
fn below(pid: u32) -> Vec<u32> {
    children(pid).into_iter().flat_map(|child| [vec![child], below(child)].concat()).collect()
}

/// Bug: an agent that was cut off from its store worked on while another host took its run over.
/// Consequence: what it did stood beside what its successor did, for as long as it was cut off.
/// Cause: a process that cannot renew refused to open calls, and nobody kept the agent from anything else.
#[test]
fn effects_of_an_agent_that_is_cut_off_never_interleave_with_its_successors() {
    each(vec!["cut off", "supervisor stopped", "guardian stopped, and cut off"], |how| {
        let hosts = Hosts::new();
        let run = start(&hosts);
        let (guardian, supervisor) = (run.pid(), run.supervisor());
        let agents = below(supervisor);
        assert!(guardian != supervisor && agents.len() >= 2, "{agents:?}");
        match how {
            "cut off" => hosts.network.cut(true),
            "supervisor stopped" => assert!(kill(supervisor, STOP)),
            _ => {
                assert!(kill(guardian, STOP));
                hosts.network.cut(true);
            }
        }
        let successor = hosts.succeed();
        until_works(&hosts, "2", 50);
        // Whatever the first host does as it comes back, it does beside its successor.
        hosts.network.cut(false);
        assert!(kill(supervisor, CONT) && kill(guardian, CONT));
        // Another process drives the run: that is an error, and the agent is dead. The successor's bears the same mark,
        // and is no one's to end here.
        run.done().code(77).tells(&["taken for dead"]);
        assert!(!agents.iter().any(|pid| runs(*pid)), "{how}");
        let seen = effects(&hosts).len();
        until("the successor goes on", || (effects(&hosts).len() > seen + 20).then_some(()));
        hosts.bed.write("go", "");
        successor.done().code(0);
        let effects = effects(&hosts);
        let first = effects.iter().position(|line| line == "2").unwrap();
        let late = effects[first..].iter().filter(|line| *line != "2").count();
        assert_eq!(late, 0, "{how}: effects of the first life after the successor's first");
    });
}

#[test]
fn an_agent_whose_run_nobody_took_over_goes_on_when_the_store_is_back() {
    each(vec!["cut off", "supervisor stopped"], |how| {
        let hosts = Hosts::new();
        let run = start(&hosts);
        let supervisor = run.supervisor();
        let agents = below(supervisor);
        match how {
            "cut off" => hosts.network.cut(true),
            _ => assert!(kill(supervisor, STOP)),
        }
        until("the agent stands still", || agents.iter().all(|pid| stands_still(*pid)).then_some(()));
        let until_told = |news: &str| {
            // The supervisor says nothing while it is stopped.
            until(news, || (how != "cut off" || run.output().contains(news)).then_some(()));
        };
        until_told("the store has taken no heartbeat for 8 s");
        let then = effects(&hosts).len();
        hosts.network.cut(false);
        assert!(kill(supervisor, CONT));
        until_works(&hosts, "1", then + 20);
        assert!(agents.iter().any(|pid| runs(*pid)));
        until_told("the run is still held here, and the agent goes on");
        hosts.bed.write("go", "");
        // The first life has no end of its own.
        run.signal(2);
        run.done().code(130);
        assert!(effects(&hosts).iter().all(|line| line == "1"), "one life");
    });
}

/// A grace would let the agent go on, and the store's return may be far.
#[test]
fn ctrl_c_ends_an_agent_that_stands_still_without_letting_it_go_on() {
    let hosts = Hosts::new();
    let run = start(&hosts);
    let agents = below(run.supervisor());
    hosts.network.cut(true);
    until("the agent stands still", || agents.iter().all(|pid| stands_still(*pid)).then_some(()));
    let then = effects(&hosts).len();
    run.signal(2);
    until("the agent is dead", || (!agents.iter().any(|pid| runs(*pid))).then_some(()));
    assert_eq!(effects(&hosts).len(), then);
    hosts.network.cut(false);
    run.done().code(130);
}

/// Whether the process is stopped, or in a control group that is frozen.
fn stands_still(pid: u32) -> bool {
    let group = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let group = group.lines().find_map(|line| line.strip_prefix("0::"));
    let frozen = group.is_some_and(|group| {
        mounts.lines().filter(|line| line.contains(" - cgroup2 ")).any(|line| {
            let point = line.split(' ').nth(4).unwrap();
            let events = std::fs::read_to_string(format!("{point}{group}/cgroup.events"));
            events.is_ok_and(|events| events.contains("frozen 1"))
        })
    });
    frozen || crate::bed::state(pid) == Some('T') || !runs(pid)
}

/// Bug: the first run on a new database was refused where a process above it had the word `run` in its command line.
/// Consequence: `timeout 5m outlast run …` worked, and `uv run`, `docker run` and a CI's step did not.
/// Cause: whoever might be a process of a run was looked for in the store, and there was none yet.
#[test]
fn the_first_run_under_a_program_that_is_told_to_run_makes_its_store() {
    let hosts = Hosts::new();
    let run = hosts.first(shell(&hosts.bed, &["--run", "r"], "exit 0"));
    let mut under = std::process::Command::new("sh");
    under.args(["-c", "\"$@\"; exit $?", "run"]).arg(run.get_program()).args(run.get_args()).env_clear();
    under.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    under.current_dir(run.get_current_dir().unwrap());
    hosts.bed.run(under).code(0);
}
