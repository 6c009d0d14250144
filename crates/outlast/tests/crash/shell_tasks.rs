//! The task of a shell loop: whose it is, what comes back of it, and when it is over.

use crate::{
    bed::{Bed, each, until},
    loop_bed::{INIT, script, shells, supervised},
};

#[test]
fn second_loop_of_a_name_is_told_who_holds_it_and_the_first_goes_on() {
    each(shells(), |shell| {
        let bed = Bed::without_mock();
        let body = format!(
            "{INIT}outlast_begin t\noutlast_run sh -c 'echo up > ../up; while [ ! -e ../go ]; do sleep 0.02; done'\noutlast_done\n"
        );
        let first = bed.start(script(&bed, shell, "loop.sh", &body));
        bed.until_file("up");
        let holder = format!("pid {}", first.pid());
        let second = format!("{INIT}echo went on\n");
        let second =
            bed.run(script(&bed, shell, "second.sh", &second)).code(77).tells(&["loop", "held", &holder]);
        assert!(!second.text.contains("went on"), "{}", second.text);
        bed.write("go", "");
        first.done().code(0);
        assert_eq!(bed.status("loop"), "completed");
    });
}

#[test]
fn two_loops_in_one_directory_never_adopt_each_others_task() {
    let outside = |bed: &Bed, shell: &str, name: &str, body: &str| bed.start(script(bed, shell, name, body));
    each(shells(), |shell| {
        let bed = Bed::without_mock();
        let body = |name: &str| {
            format!(
                "eval \"$(outlast shell-init --run {name})\" || exit
                if outlast_recover; then echo \"$TASK_ID\" >> ../{name}.told; outlast_done; exit 0; fi
                echo none >> ../{name}.told
                outlast_begin 'task of {name}'
                echo up > ../{name}.up
                outlast_run sleep 100\n"
            )
        };
        let mut both: Vec<_> =
            ["a", "b"].map(|name| (name, outside(&bed, shell, &format!("{name}.sh"), &body(name)))).into();
        for (name, looping) in &mut both {
            bed.until_file(&format!("{name}.up"));
            looping.kill();
        }
        // The other way round, and one after another: each finds a dead sibling's unfinished task.
        for name in ["b", "a"] {
            outside(&bed, shell, &format!("{name}.sh"), &body(name)).done().code(0);
            assert_eq!(bed.text(&format!("{name}.told")), format!("none\ntask of {name}\n"), "{shell}");
        }
    });
}

#[test]
fn two_loops_within_one_supervised_run_never_adopt_each_others_task() {
    each(shells(), |shell| {
        let bed = Bed::without_mock();
        let one = |name: &str| {
            format!(
                "eval \"$(outlast shell-init --run {name})\" || exit
                if outlast_recover; then echo \"$TASK_ID\" >> ../{name}.told; outlast_done; exit 0; fi
                echo none >> ../{name}.told
                outlast_begin 'task of {name}'
                outlast_run sleep 100\n"
            )
        };
        bed.write("a.sh", &one("a"));
        bed.write("b.sh", &one("b"));
        // In the second life b comes first.
        let body = format!(
            "if [ \"$OUTLAST_ATTEMPT\" = 1 ]; then
                {shell} ../a.sh & until grep -qs none ../a.told; do sleep 0.02; done
                {shell} ../b.sh & until grep -qs none ../b.told; do sleep 0.02; done
                until [ -e ../go ]; do sleep 0.02; done
                kill -9 $$
            fi
            {shell} ../b.sh && {shell} ../a.sh\n"
        );
        let run = bed.start(supervised(&bed, &[], "sh", "both.sh", &body));
        until("b has begun", || {
            let (found, _) = (bed.outlast(&["ctx", "get", "task_id", "--of", "b"]).output().unwrap(), ());
            found.status.success().then_some(())
        });
        until("a has begun", || {
            bed.outlast(&["ctx", "get", "task_id", "--of", "r"])
                .output()
                .unwrap()
                .status
                .success()
                .then_some(())
        });
        bed.write("go", "");
        run.done().code(0);
        for name in ["a", "b"] {
            assert_eq!(bed.text(&format!("{name}.told")), format!("none\ntask of {name}\n"), "{shell}");
        }
    });
}

#[test]
fn exit_with_0_while_a_task_is_begun_and_not_done_is_an_interruption() {
    each(shells(), |shell| {
        let bed = Bed::without_mock();
        let body = |name: &str| {
            format!(
                "eval \"$(outlast shell-init --run {name})\" || exit
                if outlast_recover; then outlast_done; exit 0; fi
                outlast_begin \"it's t\"; exit 0\n"
            )
        };
        let told = ["exit 0", "it's t", "begun and not done"];
        bed.run(script(&bed, shell, "loop.sh", &body("loop"))).code(130).tells(&told);
        assert_eq!(bed.status("loop"), "interrupted");
        bed.run(script(&bed, shell, "loop.sh", &body("loop"))).code(0);
        assert_eq!(bed.status("loop"), "completed");

        bed.run(supervised(&bed, &[], shell, "inside.sh", &body("inside"))).code(130).tells(&told);
        assert_eq!(
            (bed.status("r").as_str(), &bed.show("r")["stop_requested"]),
            ("interrupted", &false.into())
        );
        bed.does(&["resume", "r"]).code(0);
        assert_eq!(bed.status("r"), "completed");
    });
}

#[test]
fn values_come_back_as_they_were_whatever_is_in_them() {
    let hard = [
        "it's \"quoted\" and 'again'",
        "two\nlines\n",
        "$(touch ../hacked) `touch ../hacked` ${HOME} \\ \\n",
        "-n",
        "--json",
        "größe 日本 🦀",
        "; touch ../hacked; #",
        "",
    ];
    each(shells(), |shell| {
        let bed = Bed::without_mock();
        for (i, value) in hard.iter().enumerate().filter(|(_, v)| !v.is_empty()) {
            bed.write(&format!("value-{i}"), &format!("{value}."));
        }
        bed.write("value-7", ".");
        let body = format!(
            r#"{INIT}
            v() {{ v=$(cat "../value-$1"); v=${{v%.}}; }}
            i=0
            while [ $i -lt 7 ]; do
                v $i
                if outlast_recover; then exit 9; fi
                outlast_begin "$v" issue_number="$v" workspace_path="$v" own_key="$v" || exit 8
                outlast_stage "$v" || exit 7
                outlast ctx set branch_name="$v" || exit 6
                unset TASK_ID ISSUE_NUMBER WORKSPACE_PATH BRANCH_NAME PROGRESS_STAGE
                outlast_recover || exit 5
                for found in "$TASK_ID" "$RECOVERED_TASK_ID" "$ISSUE_NUMBER" "$WORKSPACE_PATH" "$BRANCH_NAME" "$PROGRESS_STAGE"; do
                    [ "$found" = "$v" ] || {{ printf 'lost: <%s> <%s>\n' "$found" "$v"; exit 4; }}
                done
                unset TASK_ID
                eval "$(outlast ctx env)"
                [ "$TASK_ID" = "$v" ] && [ "$OUTLAST_CTX_OWN_KEY" = "$v" ] || exit 3
                got=$(outlast ctx get branch_name; echo .); [ "$got" = "$v
." ] || exit 2
                outlast_done "$v" || exit 10
                [ -z "${{TASK_ID+set}}" ] || exit 11
                outlast_is_over "$v" || exit 12
                i=$((i + 1))
            done
            v 7
            outlast ctx set branch_name="$v" && eval "$(outlast ctx env)" && [ -z "$BRANCH_NAME" ] && [ -n "${{BRANCH_NAME+set}}" ]
            "#
        );
        bed.run(script(&bed, shell, "loop.sh", &body)).code(0);
        assert!(!bed.path("hacked").exists() && !bed.path("work/hacked").exists(), "{shell}");
    });
}

#[test]
fn key_of_the_context_never_sets_another_variable() {
    each(shells(), |shell| {
        let bed = Bed::without_mock();
        let body = format!(
            r#"{INIT}
            before=$PATH
            outlast_begin t path=/evil ifs=x bash_env=/evil ld_preload=/evil store=/evil json=1 of=evil ps4=x || exit 9
            outlast_recover || exit 8
            eval "$(outlast ctx env)"
            [ "$PATH" = "$before" ] && [ "$OUTLAST_CTX_PATH" = /evil ] && [ -z "${{BASH_ENV-}}${{LD_PRELOAD-}}" ] || exit 7
            # What a key's variable is called is no setting of ours either.
            [ "$(outlast ctx get task_id)" = t ] || exit 6
            for bad in PATH=x Task=x 'a b=x' '$(id)=x' 1a=x; do outlast ctx set "$bad" 2>/dev/null && exit 5; done
            outlast_done
            "#
        );
        bed.run(script(&bed, shell, "loop.sh", &body)).code(0);
    });
}

#[test]
fn what_stands_in_the_environment_is_not_taken_for_the_tasks() {
    each(shells(), |shell| {
        let bed = Bed::without_mock();
        let inner = "eval \"$(outlast shell-init --run inner)\" || exit
            [ -z \"${TASK_ID-}${BRANCH_NAME-}${RECOVERED_TASK_ID-}\" ] || exit 6
            outlast_recover && exit 5; exit 0\n";
        let inner = bed.write("inner.sh", inner);
        let body = format!(
            "{INIT}[ -z \"${{RECOVERED_TASK_ID-}}\" ] || exit 9
            # What a person gives the script is the script's.
            [ \"$ISSUE_NUMBER\" = given ] || exit 8
            BRANCH_NAME=own; outlast_recover && exit 7; outlast_begin t; [ \"$BRANCH_NAME\" = own ] || exit 4
            export BRANCH_NAME; {shell} {} || exit
            BRANCH_NAME=stale; outlast_recover || exit 3; [ -z \"${{BRANCH_NAME+set}}\" ] || exit 2
            outlast_done\n",
            inner.display()
        );
        let mut command = script(&bed, shell, "loop.sh", &body);
        command.env("RECOVERED_TASK_ID", "a stranger's").env("ISSUE_NUMBER", "given");
        bed.run(command).code(0);
    });
}

#[test]
fn task_is_not_lost_by_beginning_another() {
    each(shells(), |shell| {
        let bed = Bed::without_mock();
        let body = format!(
            "{INIT}outlast_begin one\noutlast_begin two && exit 9\n[ \"$TASK_ID\" = one ] || exit 8\n\
             outlast_done two && exit 7\noutlast_begin one || exit 6\noutlast_done one\noutlast_done && exit 5\nexit 0\n"
        );
        bed.run(script(&bed, shell, "loop.sh", &body))
            .code(0)
            .tells(&["\"one\" is begun and not done", "\"two\""]);
    });
}

#[test]
fn task_that_kills_each_life_is_set_aside_and_kept() {
    each(shells(), |shell| {
        let bed = Bed::without_mock();
        let body = "eval \"$(outlast shell-init --run loop --max-lives 3)\" || exit
            if outlast_recover; then echo \"$OUTLAST_TASK_LIVES\" >> ../told
            elif outlast_is_over poison; then echo next >> ../told; exit 0
            else outlast_begin poison branch_name=b; fi
            outlast_stage coding; kill -9 $$\n";
        for _ in 0..3 {
            bed.run(script(&bed, shell, "loop.sh", body)).code(137);
        }
        bed.run(script(&bed, shell, "loop.sh", body)).code(0).tells(&["\"poison\" is set aside", "3 lives"]);
        assert_eq!(bed.text("told"), "2\n3\nnext\n", "{shell}");
        let kept = bed.does(&["state", "get", "task.aside", "poison", "--namespace", "run:loop"]).code(0);
        assert!(kept.text.contains("\"branch_name\":\"b\""), "{}", kept.text);
    });
}
