//! A loop script on a bed: in a shell of its own, with `outlast` and fake agents on its PATH.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use crate::bed::{Bed, OUTLAST, runs, text, until};

/// The shells that `outlast shell-init` is for. `make test` installs them.
pub fn shells() -> Vec<&'static str> {
    let is_here = |shell: &&str| {
        ["/bin", "/usr/bin", "/usr/local/bin"].iter().any(|d| Path::new(d).join(shell).exists())
    };
    let all = vec!["bash", "dash", "zsh"];
    let missing: Vec<&str> = all.iter().copied().filter(|shell| !is_here(shell)).collect();
    assert!(missing.is_empty(), "not installed: {missing:?} (scripts/setup.sh shells)");
    all
}

/// The first lines of every script here.
pub const INIT: &str = "eval \"$(outlast shell-init --run loop)\" || exit\n";

/// Puts an executable on the scripts' PATH.
pub fn tool(bed: &Bed, name: &str, script: &str) {
    fs::create_dir_all(bed.path("bin")).unwrap();
    let file = bed.path("bin").join(name);
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn path(bed: &Bed) -> String {
    let ours = Path::new(OUTLAST).parent().unwrap();
    format!("{}:{}:/usr/local/bin:/usr/bin:/bin", bed.path("bin").display(), ours.display())
}

/// `SHELL NAME` with that text, outside any run.
pub fn script(bed: &Bed, shell: &str, name: &str, body: &str) -> Command {
    let file = bed.write(name, body);
    around(bed, shell, &[text(&file)])
}

/// A program with what is around a script.
pub fn around(bed: &Bed, program: &str, args: &[&str]) -> Command {
    let like = bed.outlast(&[]);
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .current_dir(like.get_current_dir().unwrap())
        .stdin(std::process::Stdio::null());
    command.envs(like.get_envs().filter_map(|(k, v)| Some((k, v?)))).env("PATH", path(bed));
    command
}

/// The same under `outlast run --run r`.
pub fn supervised(bed: &Bed, flags: &[&str], shell: &str, name: &str, body: &str) -> Command {
    let file = bed.write(name, body);
    let mut command = bed.outlast(&["run", "--run", "r"]);
    command.args(flags).args(["--", shell, text(&file)]).env("PATH", path(bed));
    command
}

/// The process whose number a script wrote to the file `name`.
pub fn pid(bed: &Bed, name: &str) -> u32 {
    until(name, || bed.text(name).trim().parse().ok())
}

pub fn gone(pid: u32) {
    until("the agent is gone", || (!runs(pid)).then_some(()));
}
