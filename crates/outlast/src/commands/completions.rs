//! Texts made from the definition of the command line: a shell's completion script, and the man pages.

use crate::{
    cli::{self, CompletionsArgs, ManArgs},
    program::error::CliError,
    render::look::Page,
};

pub fn completions(args: &CompletionsArgs, page: &mut Page) -> Result<(), CliError> {
    // Generated in memory first: the generator panics when its output is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "outlast", &mut script);
    Ok(page.text(&String::from_utf8_lossy(&script))?)
}

/// Writes a page for the program and one for each of its commands into the directory.
pub fn man(args: &ManArgs) -> Result<(), CliError> {
    std::fs::create_dir_all(&args.directory)?;
    Ok(clap_mangen::generate_to(cli::command(), &args.directory)?)
}
