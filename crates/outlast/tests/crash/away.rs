//! A directory or a program of a run that is away for a while is no verdict on the run.

use std::{fs, os::unix::fs::PermissionsExt as _};

use crate::bed::{Bed, text};

/// A run whose program is `bin/agent`, interrupted in its first life. With the file `go` there it ends.
fn interrupted() -> Bed {
    let bed = Bed::without_mock();
    fs::create_dir(bed.path("bin")).unwrap();
    let agent = bed.write(
        "bin/agent",
        "#!/bin/sh\ntest -e ../go && pwd > ../ended && exit 0\n> ../begun\nexec sleep 1000\n",
    );
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = bed.outlast(&["run", "--run", "r", "--"]);
    command.arg(&agent);
    let mut run = bed.start(command);
    bed.until_file("begun");
    run.kill();
    bed.write("go", "");
    bed
}

// Bug: a resumption while a run's directory was not mounted made the run `failed`. Consequence: `resume --all` left it
// alone for good. Cause: what passes was recorded as a verdict.
#[test]
fn run_whose_directory_is_away_stays_as_it_was_and_goes_on_where_a_person_says() {
    let bed = interrupted();
    let (work, moved) = (bed.path("work"), bed.path("moved"));
    fs::rename(&work, &moved).unwrap();
    let there = |args: &[&str]| {
        let mut command = bed.outlast(args);
        command.current_dir(bed.path("."));
        bed.run(command)
    };
    let done = there(&["resume", "r"]);
    assert_ne!(done.code, 0);
    done.tells(&[&format!("there is no directory {}", text(&work)), "`outlast resume r --cd DIR`"]);
    assert_ne!(there(&["resume", "--all"]).code, 0);
    assert_ne!(there(&["resume", "r", "--cd", "nowhere"]).code, 0);
    let show = || serde_json::from_str::<serde_json::Value>(&there(&["show", "r", "--json"]).text).unwrap();
    let shown = show();
    let attempts = shown["attempts"].as_array().map_or(0, Vec::len);
    assert_eq!((shown["status"].as_str(), attempts), (Some("interrupted"), 1), "{shown}");
    there(&["resume", "r", "--cd", "moved"]).code(0);
    assert_eq!(bed.text("ended"), format!("{}\n", text(&moved.canonicalize().unwrap())));
    assert_eq!(show()["status"], "completed");
}

#[test]
fn run_whose_program_is_away_goes_on_when_it_is_back() {
    let bed = interrupted();
    let (agent, away) = (bed.path("bin/agent"), bed.path("bin/away"));
    fs::rename(&agent, &away).unwrap();
    bed.does(&["resume", "r"]).code(127).tells(&["command not found: "]);
    assert_eq!(bed.status("r"), "interrupted");
    fs::rename(&away, &agent).unwrap();
    bed.does(&["resume", "--all"]).code(0);
    assert_eq!(bed.status("r"), "completed");
}
