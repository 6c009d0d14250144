//! A loop that gets on, killed forty times: no task is lost, none is done twice.

use crate::{
    bed::{Bed, Dice, Done, each},
    loop_bed::{INIT, script, shells, supervised},
};

/// Works through a queue of tasks, or as many as it gets to before the moment that it is to die at.
const QUEUE: &str = r#"
n=0
moment() { n=$((n + 1)); if [ "$n" -eq "$DIE_AT" ]; then kill -s "$DIE_BY" $$; sleep 100; fi; }
next() {
    for t in $(echo "$TASKS"); do
        # Its line in the log may be missing where it was killed between the two.
        grep -qsx "done $t" ../log || outlast_is_over "it's $t" || { echo "$t"; return 0; }
    done
    return 1
}
while :; do
    moment
    if outlast_recover; then
        echo "recovered $TASK_ID" >> ../log
        t=${TASK_ID#"it's "}
    elif t=$(next); then
        outlast_begin "it's $t" || exit 9
        echo "begun $TASK_ID" >> ../log
    else
        exit 0
    fi
    moment
    outlast_stage working
    moment
    # The effect, once: a task that was taken up again looks first.
    [ -e "../effect-$t" ] || echo "effect $t" >> "../effect-$t"
    moment
    outlast_stage worked
    moment
    outlast_done || exit 8
    echo "done $t" >> ../log
done
"#;

/// Deaths of a loop: more than any row of deaths that is a crash loop. `make crash` has thousands.
const DEATHS: usize = 40;

fn tasks(count: usize) -> String {
    (1..=count).map(|n| format!("{n:02} ")).collect()
}

#[test]
fn forty_restarts_of_a_loop_that_gets_on_lose_no_task_and_do_none_twice() {
    let cases: Vec<_> = shells().into_iter().map(|shell| (shell, Dice::new())).collect();
    each(cases, |(shell, mut dice)| {
        let bed = Bed::without_mock();
        let (mut deaths, mut queues) = (0, 0);
        // When all is done the queue is there again, under another name of the loop.
        while deaths < DEATHS {
            let init =
                format!("eval \"$(outlast shell-init --run q{queues})\" || exit\nTASKS='{}'\n", tasks(12));
            let mut command = script(&bed, shell, "queue.sh", &format!("{init}{QUEUE}"));
            let by = ["KILL", "TERM", "HUP", "KILL"][dice.below(4) as usize];
            command.env("DIE_AT", (1 + dice.below(9)).to_string()).env("DIE_BY", by);
            let Done { code, text, .. } = bed.run(command);
            match code {
                0 => {
                    every_task_was_done_once(&bed, shell, 12);
                    queues += 1;
                }
                137 | 143 | 129 => deaths += 1,
                _ => panic!("{shell}: exit {code}: {text}"),
            }
        }
        assert!(queues > 0, "{shell}: it never got through");
    });
}

fn every_task_was_done_once(bed: &Bed, shell: &str, count: usize) {
    let log = bed.text("log");
    for n in 1..=count {
        // Killed between the commit and its line in the log, it has none.
        for line in [format!("begun it's {n:02}"), format!("done {n:02}")] {
            let times = log.lines().filter(|l| **l == line).count();
            assert!(times <= 1, "{shell}: {line:?} {times} times:\n{log}");
        }
        let effect = format!("effect-{n:02}");
        assert_eq!(bed.text(&effect), format!("effect {n:02}\n"), "{shell}");
        std::fs::remove_file(bed.path(&effect)).unwrap();
    }
    std::fs::remove_file(bed.path("log")).unwrap();
}

#[test]
fn forty_restarts_of_a_supervised_loop_that_gets_on_are_no_crash_loop() {
    // Killed with its supervisor, so that no backoff is waited for.
    let (shell, bed, mut dice) = (shells()[0], Bed::without_mock(), Dice::new());
    let init = format!("{INIT}DIE_AT=$(cat ../die-at) TASKS='{}'\n", tasks(24));
    let body = format!("{init}{}", QUEUE.replace("kill -s \"$DIE_BY\" $$", "kill -9 $PPID $$"));
    let mut deaths = 0;
    loop {
        // After them it may go on for longer.
        bed.write("die-at", &(if deaths < DEATHS { 2 + dice.below(4) } else { 25 }).to_string());
        let typed = match deaths {
            0 => supervised(&bed, &[], shell, "queue.sh", &body),
            _ => bed.outlast(&["resume", "r"]),
        };
        let Done { code, text, .. } = bed.run(typed);
        match code {
            0 => break,
            137 => deaths += 1,
            _ => panic!("exit {code} after {deaths} deaths: {text}"),
        }
    }
    assert!(deaths >= DEATHS, "{deaths}");
    every_task_was_done_once(&bed, shell, 24);
    assert_eq!(bed.status("r"), "completed");
}
