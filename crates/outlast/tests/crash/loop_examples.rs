//! `examples/loops`: ours is driven to its end over kills, and the trap pattern is not.

use crate::{
    bed::Bed,
    loop_bed::{gone, pid, script, tool},
};

#[test]
fn fake_agents_of_the_examples_are_driven_to_the_end_over_kills() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/loops");
    let agent = "#!/bin/sh
        printf '%s\\n' \"$*\" >> ../asked
        if [ ! -e ../hit ]; then touch ../hit; echo $$ > ../agent; exec sleep 100; fi\n";
    for (name, prepare) in [("claude", "issues"), ("kimi", "tasks")] {
        let bed = Bed::without_mock();
        tool(&bed, name, agent);
        if prepare == "issues" {
            std::fs::create_dir(bed.path("work/issues")).unwrap();
            for n in ["7", "8"] {
                bed.write(&format!("work/issues/{n}.md"), &format!("it's \"{n}\"\n"));
            }
        } else {
            bed.write("work/tasks.txt", "write it's tests\n\nwrite $(docs)\n");
        }
        let example = std::fs::read_to_string(format!("{root}/{name}-loop.sh")).unwrap();
        let shell = if name == "claude" { "dash" } else { "bash" };
        let looping = bed.start(script(&bed, shell, "loop.sh", &example));
        let agent = pid(&bed, "agent");
        looping.signal(15);
        looping.done().code(143);
        gone(agent);
        bed.run(script(&bed, shell, "loop.sh", &example)).code(0).tells(&["going on with"]);
        let asked = bed.text("asked");
        let wanted = if name == "claude" { (5, "issue 8") } else { (3, "write $(docs)") };
        assert_eq!(
            (asked
                .lines()
                .filter(|l| l.contains("issue") || l.contains("write") || l.contains("Review"))
                .count()),
            wanted.0,
            "{asked}"
        );
        assert!(asked.contains(wanted.1), "{asked}");
        bed.run(script(&bed, shell, "loop.sh", &example)).code(0);
        assert_eq!(bed.text("asked"), asked, "{name}: nothing is done twice");
    }
}

#[test]
fn trap_pattern_does_a_finished_task_again_and_ours_does_not() {
    // The example's own form, with its files kept out of /tmp: what the flaws look like.
    let bed = Bed::without_mock();
    tool(&bed, "claude", "#!/bin/sh\nprintf '%s\\n' \"$2\" >> ../asked\n");
    tool(&bed, "whoami", "#!/bin/sh\necho me\n");
    tool(
        &bed,
        "jq",
        "#!/usr/bin/env python3\nimport json, sys\nprint(json.load(open(sys.argv[3]))['task_id'])\n",
    );
    std::fs::create_dir(bed.path("work/issues")).unwrap();
    bed.write("work/issues/7.md", "seven");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/loops");
    let trap = std::fs::read_to_string(format!("{root}/claude-loop-trap.sh")).unwrap();
    let trap = trap.replace("/tmp/", &format!("{}/", bed.path("").display()));
    for _ in 0..2 {
        bed.run(script(&bed, "bash", "trap.sh", &trap)).code(0);
    }
    assert!(bed.text("asked").contains("Go on with issue-7"), "{}", bed.text("asked"));
    std::fs::remove_file(bed.path("asked")).unwrap();
    let ours = std::fs::read_to_string(format!("{root}/claude-loop.sh")).unwrap();
    for _ in 0..2 {
        bed.run(script(&bed, "bash", "ours.sh", &ours)).code(0);
    }
    assert_eq!(
        bed.text("asked").lines().count(),
        2,
        "one to resolve it, one to review it: {}",
        bed.text("asked")
    );
}
