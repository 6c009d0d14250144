//! `outlast completions SHELL`: prints a shell's completion script.

use crate::{
    cli::{self, CompletionsArgs},
    program::error::CliError,
    render::look::Page,
};

pub fn completions(args: &CompletionsArgs, page: &mut Page) -> Result<(), CliError> {
    // Generated in memory first: the generator panics when its output is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "outlast", &mut script);
    Ok(page.text(&String::from_utf8_lossy(&script))?)
}
