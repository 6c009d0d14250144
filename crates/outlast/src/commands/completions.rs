//! Texts made from the definition of the command line: a shell's completion script, and the man pages.

use clap_complete::Shell;

use super::prelude::*;

/// Print a completion script for a shell
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  outlast completions bash > ~/.local/share/bash-completion/completions/outlast\n  outlast completions fish > ~/.config/fish/completions/outlast.fish"
)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Write the man pages, for whoever makes a package
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// The directory, made if it is not there
    pub directory: PathBuf,
}

pub fn completions(args: &CompletionsArgs, look: Look, _: &Surroundings) -> Result<u8> {
    // Generated in memory first: the generator panics when its output is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "outlast", &mut script);
    super::on_stdout(look, |page| Ok(page.text(&String::from_utf8_lossy(&script))?))
}

/// Writes a page for the program and one for each of its commands into the directory.
pub fn man(args: &ManArgs) -> Result {
    std::fs::create_dir_all(&args.directory)?;
    Ok(clap_mangen::generate_to(super::command(), &args.directory)?)
}
