//! Stories of a killed supervisor: its processes end with it. The guardian ends those of a dead supervisor, the
//! supervisor those of a dead guardian, and the next command those of both.

use std::process::Command;

use crate::{
    agents::shell,
    bed::{Bed, Proc, children, each, kill, runs, until},
};

const KILL: i32 = 9;

/// A shell with a family that gets away from it in every way, and works until it may end: in the first life only.
const FAMILY: &str = r#"
[ $OUTLAST_ATTEMPT = 1 ] || exit 0
cat > ../member.sh <<'END'
trap '' TERM HUP INT
echo $$ >> ../family
while [ ! -e ../go ]; do sleep 0.05; done
END
sh ../member.sh &
(sh ../member.sh &)
setsid sh ../member.sh &
(setsid sh ../member.sh &)
(env -i PATH="$PATH" setsid sh ../member.sh &)
while [ $(wc -l < ../family) -lt 5 ]; do sleep 0.02; done
echo up > ../up
wait"#;

const MEMBERS: usize = 5;

fn start(bed: &Bed) -> (Proc, Vec<u32>) {
    let run = bed.start(shell(bed, &["--run", "r"], FAMILY));
    bed.until_file("up");
    let family = bed.until_lines("family", MEMBERS).iter().map(|pid| pid.parse().unwrap()).collect();
    (run, family)
}

fn until_gone(family: &[u32]) {
    until("nobody of the family lives", || (!family.iter().any(|pid| runs(*pid))).then_some(()));
}

#[test]
fn nobody_outlives_a_killed_supervisor_or_its_killed_guardian() {
    // Bug: after `kill -9` of its supervisor a shell-wrapped agent worked on for ever, also after `outlast cancel`.
    // Consequence: two agents did the same work, one of them past every limit.
    // Cause: the kernel killed the direct child alone, and nobody else was there to end the rest.
    each(vec!["supervisor", "guardian", "its group", "supervisor's group"], |who| {
        let bed = Bed::without_mock();
        let (run, family) = start(&bed);
        let (guardian, supervisor) = (run.pid(), run.supervisor());
        assert_ne!(guardian, supervisor);
        match who {
            "supervisor" => assert!(kill(supervisor, KILL)),
            "guardian" => assert!(kill(guardian, KILL)),
            "its group" => kill_group(guardian),
            _ => kill_group(supervisor),
        }
        let done = run.done().code(137);
        if who.starts_with("supervisor") {
            // The command that was typed has ended: so has everything below it.
            assert!(!family.iter().any(|pid| runs(*pid)), "{who}");
            // A killed supervisor could not say how its run goes on, so the guardian does.
            let hint = "hint: go on with it: `outlast resume r`";
            done.tells(&["the supervisor ended (killed by SIGKILL): ended", hint]);
        }
        until_gone(&family);
        until("the supervisor is gone", || (!runs(supervisor)).then_some(()));
        assert_eq!(bed.status("r"), "interrupted", "{who}");
        // Bug: an attempt that its supervisor ended after its guardian was killed was told as ended by itself; in an outage
        // of its provider it was no death. Cause: the supervisor recorded the end that it had brought about.
        bed.does(&["show", "r"]).code(0).tells(&["1 attempt, 1 death", "lost with its supervisor"]);
        bed.does(&["resume", "r"]).code(0);
        assert_eq!(bed.status("r"), "completed", "{who}");
    });
}

fn kill_group(of: u32) {
    let group = rustix::process::Pid::from_raw(of as i32).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
}

/// Stops the guardian, so that it cannot act, and kills both.
fn kill_both(run: Proc) {
    let (guardian, supervisor) = (run.pid(), run.supervisor());
    assert!(kill(guardian, 19) && kill(supervisor, KILL) && kill(guardian, KILL));
    run.done().code(137);
    until("the supervisor is gone", || (!runs(supervisor)).then_some(()));
}

#[test]
fn where_both_are_killed_the_next_command_ends_all_that_bear_the_mark() {
    each(vec![vec!["ls"], vec!["cancel", "r"], vec!["stop", "r"], vec!["resume", "r"]], |next| {
        let bed = Bed::without_mock();
        let (run, family) = start(&bed);
        kill_both(run);
        let left: Vec<u32> = family.into_iter().filter(|pid| runs(*pid)).collect();
        assert_eq!(left.len(), MEMBERS);
        bed.does(&next).code(0);
        let (unmarked, marked): (Vec<u32>, Vec<u32>) = left.into_iter().partition(|pid| {
            !runs(*pid)
                || std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|e| !contains(&e, b"OUTLAST_MARK"))
        });
        assert_eq!(marked, Vec::<u32>::new(), "{next:?}");
        // The one without its environment is found by its control group alone, where one can be made.
        assert!(unmarked.iter().filter(|pid| runs(**pid)).count() <= 1, "{next:?}");
        bed.write("go", "");
        until_gone(&unmarked);
    });
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|found| found == part)
}

#[test]
fn cancel_and_stop_end_what_they_find_long_after_the_verdict() {
    each(vec!["cancel", "stop"], |verb| {
        let bed = Bed::without_mock();
        let (mut run, family) = start(&bed);
        // One of the family has no environment of the agent's, and any of them may be the first. In the middle of its exec a
        // process shows none, or an older one.
        let environ = until("one of the family bears the mark", || {
            let all = family.iter().map(|pid| std::fs::read(format!("/proc/{pid}/environ")).unwrap());
            let marked = all.into_iter().find(|environ| contains(environ, b"OUTLAST_MARK"))?;
            Some(String::from_utf8(marked).unwrap())
        });
        run.kill();
        assert_eq!(bed.status("r"), "interrupted");
        // Whoever got away from everybody: here, one that never was below them.
        let mut stray = Command::new("sleep");
        stray.arg("120").env_clear().envs(environ.split('\0').filter_map(|entry| entry.split_once('=')));
        stray.env("CLAUDECODE", "1");
        let stray = bed.start(stray);
        until("it bears the mark", || {
            let environ = std::fs::read(format!("/proc/{}/environ", stray.pid())).unwrap();
            contains(&environ, b"OUTLAST_MARK").then_some(())
        });
        assert_eq!(bed.status("r"), "interrupted");
        assert!(runs(stray.pid()));
        bed.does(&[verb, "r"]).code(0).tells(&["r: ending 1 process that a killed supervisor left"]);
        stray.done().code(143);
        // Bug: the model was told that a tool had ended, which the command had ended. Cause: only guardians listed such tools.
        let left = bed.text("state/runs.db.runs/r/left.json");
        assert!(left.contains("sleep 120"), "the next attempt's note tells of it: {left}");
    });
}

#[test]
fn guardian_is_small_and_gives_back_what_it_does_not_use() {
    let bed = Bed::without_mock();
    let (run, family) = start(&bed);
    let of = |file: &str, wanted: &str| {
        let text = std::fs::read_to_string(format!("/proc/{}/{file}", run.pid()))?;
        let lines = text.lines().filter(|line| line.starts_with(wanted));
        Ok::<u64, std::io::Error>(
            lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum(),
        )
    };
    match of("smaps_rollup", "Private_") {
        Ok(private_kb) => assert!((1..1024).contains(&private_kb), "{private_kb} kB"),
        // Both hold keys, and show their pages to root alone. Everybody sees the sum, which has shared pages in it.
        Err(_) => {
            let most_kb = of("status", "RssAnon").unwrap();
            assert!((1..8192).contains(&most_kb), "{most_kb} kB");
        }
    }
    assert_eq!(children(run.pid()), [run.supervisor()]);
    bed.write("go", "");
    run.done().code(0);
    until_gone(&family);
}

#[test]
fn guardian_ends_as_its_supervisor_ends() {
    for (script, code) in [("exit 0", 0), ("exit 2", 76), ("kill -USR1 $PPID; sleep 60", 138)] {
        let bed = Bed::without_mock();
        let done = bed.run(shell(&bed, &["--run", "r", "--restarts", "0"], script));
        assert_eq!(done.code, code, "{script}: {}", done.text);
    }
}

#[test]
fn who_reads_the_output_of_a_detached_run_does_not_wait_for_its_guardian() {
    let bed = Bed::without_mock();
    let mut command = bed.outlast(&["run", "-d", "--run", "r", "--", "sh", "-c", crate::agents::UP_UNTIL_GO]);
    // Ends when nobody holds the pipes any more.
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "r");
    bed.until_lines("up", 1);
    bed.write("go", "");
    bed.until_status("r", "completed");
}

/// Signals a shell's job, which is the group of the command typed, and its guardian alone.
#[test]
fn signal_to_the_group_is_heard_once() {
    each(vec!["group", "guardian"], |to| {
        let bed = Bed::without_mock();
        let agent = format!(
            "trap 'echo asked >> ../asked; while [ ! -e ../go ]; do sleep 0.02; done; exit 0' TERM
            {}",
            crate::agents::UP_UNTIL_GO
        );
        // On a terminal, where the two share a group.
        let line = format!(
            "exec {} run --pty never --run r -- sh -c \"$AGENT\" > ../said 2>&1",
            crate::bed::OUTLAST
        );
        let around = bed.outlast(&[]);
        let mut command = Command::new("script");
        command.args(["-qefc", &line, "/dev/null"]).env_clear().current_dir(bed.path("work"));
        command
            .envs(around.get_envs().filter_map(|(k, v)| Some((k, v?))))
            .env("TERM", "dumb")
            .env("AGENT", agent);
        command.stdin(std::process::Stdio::piped());
        let run = bed.start(command);
        bed.until_lines("up", 1);
        let guardian = children(run.pid())[0];
        let supervisor = children(guardian)[0];
        let group = rustix::process::getpgid(rustix::process::Pid::from_raw(supervisor as i32)).unwrap();
        assert_eq!(group.as_raw_nonzero().get(), guardian as i32);
        match to {
            "group" => rustix::process::kill_process_group(group, rustix::process::Signal::TERM).unwrap(),
            _ => assert!(kill(guardian, 15)),
        }
        bed.until_lines("asked", 1);
        // Asked twice, the supervisor would have killed its agent, which had no time to end.
        bed.write("go", "");
        run.done().code(130);
        assert_eq!(bed.show("r")["attempts"][0]["how"], "stopped (finished)", "{}", bed.text("said"));
    });
}
