//! Loop scripts: shell functions that keep a loop's task, and the lease that makes the loop one.
//!
//! `outlast shell-init` prints the functions, `*.sh` here. The functions hold no state: each calls one verb (`outlast
//! shell-loop …`), which commits before it returns, and evaluates the exports that it prints. So nothing needs to be
//! saved when the shell dies, and no trap has to run.
//!
//! Outside `outlast run`, the shell itself is the driver of the loop's run: [`lease`] registers the *shell's* process,
//! so that its death is seen, and its keeper renews its heartbeat for those who cannot see the process.

pub mod at_exit;
pub mod lease;
pub mod task_context;
pub mod verbs;
pub mod words;

use outlast_core::words::RunId;

use self::words::ShellInitArgs;
use crate::{
    program::{context::Context, error::CliError, told},
    render::{look::Page, quote},
};

const CHILD: &str = include_str!("child.sh");
const TRAPS: &str = include_str!("traps.sh");
const VERBS: &str = include_str!("verbs.sh");
const OPEN: &str = include_str!("open.sh");

/// Prints the shell functions of a loop, for `eval`. Opens no store: the functions do.
pub fn print(args: &ShellInitArgs, context: &Context, page: &mut Page) -> Result<(), CliError> {
    let name = args.run.as_deref().ok_or_else(|| {
        CliError::usage(
            "the loop has no name",
            Some("eval \"$(outlast shell-init --run NAME)\", with the same NAME in each of its lives"),
        )
    })?;
    let name = RunId::new(name).map_err(|e| CliError::usage(e.to_string(), None))?;
    let program = crate::program()?;
    let program = program.to_str().ok_or_else(|| {
        CliError::usage(
            format!("the path of this program is not plain text: {}", program.display()),
            Some("install it elsewhere"),
        )
    })?;
    page.text(&script(
        program,
        name.as_str(),
        &args.max_lives.to_string(),
        store_to_tell(context)?.as_deref(),
    ))?;
    Ok(())
}

/// Returns shell code that ends a script with exit code `code`; in an interactive shell it only sets the exit status.
pub fn end_with(code: u8) -> String {
    format!("case $- in *i*) (exit {code}) ;; *) exit {code} ;; esac")
}

fn script(program: &str, name: &str, lives: &str, store: Option<&str>) -> String {
    // The functions mean the shell's own `trap`, also where they are read for a second time.
    let mut out = String::from("# outlast shell-init\nunalias trap 2>/dev/null || :\n");
    for (variable, value) in
        [("__outlast_program", program), ("__outlast_name", name), ("__outlast_lives", lives)]
    {
        out.push_str(&format!("{variable}={}\n", quote::quoted(value)));
    }
    if let Some(store) = store {
        out.push_str(&quote::export(told::STORE, store));
    }
    for part in [VERBS, CHILD, TRAPS, OPEN] {
        out.push_str(part);
    }
    out
}

/// Returns the store's address to export to the loop, `None` if it is set already. Errors: it holds a password.
fn store_to_tell(context: &Context) -> Result<Option<String>, CliError> {
    let address = context.place.address();
    if context.around.var(told::STORE).is_some_and(|had| had == address.as_str()) {
        return Ok(None);
    }
    match context.place.without_secret() {
        Some(address) => Ok(Some(address)),
        None => Err(CliError::usage(
            format!("the store's address {} holds a password", context.place),
            Some("give it in the variable OUTLAST_STORE, which the loop then has"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_functions_are_well_formed_in_every_shell() {
        let text = script("/opt/it's/outlast", "nightly", "10", Some("/a b/runs.db"));
        for shell in ["sh", "dash", "bash", "zsh"] {
            let out = Command::new(shell).args(["-n", "-c", &text]).output();
            let out = out.unwrap_or_else(|e| panic!("{shell}: {e} (scripts/setup.sh shells)"));
            assert!(out.status.success(), "{shell}: {}", String::from_utf8_lossy(&out.stderr));
        }
    }
}
