//! `outlast trust`: lets the settings file of this directory count, as it is now.

use super::config;
use super::prelude::*;
use crate::settings::{file, trust};

/// Trust the outlast.toml of this directory, as it is now
///
/// Anybody who can change a directory can write its outlast.toml: a checkout, or an agent that works there. Until you trust
/// it, it sets how output looks and nothing else, and a command for which it would set more is refused. This prints it
/// and trusts it. Once it changes it is no longer trusted. Acts, such as --add-usd, are set by no file.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  cd checkout && outlast trust")]
pub struct TrustArgs {
    /// Withdraw the trust
    #[arg(long)]
    pub withdraw: bool,
}

/// Prints the directory's settings file and trusts it, or withdraws the trust.
///
/// Durable before it returns. Errors: `no_settings` without a file; those of settings, for a file that nobody can use.
pub fn trust(args: &TrustArgs, context: &Context, page: &mut Page) -> Result {
    let around = &context.around;
    let path = around.directory().join(file::FILE);
    let failed = |why| CliError::from(InputError::Trust { path: path.clone(), why });
    if args.withdraw {
        let was = trust::withdraw(around, &path).map_err(failed)?;
        if page.look.json {
            return Ok(page.json(&json!({ "path": path, "trusted": false }))?);
        }
        let said = if was { "is no longer trusted" } else { "was not trusted" };
        return Ok(page.line(&format!("{} {said}", path.display()))?);
    }
    let found = file::directorys_file(around)?;
    let found = found.ok_or_else(|| InputError::NoSettings { path: path.clone() })?;
    config::check(found.clone())?;
    trust::give(around, &path, &found.text).map_err(failed)?;
    if page.look.json {
        return Ok(page.json(&json!({ "path": path, "trusted": true, "content": found.text }))?);
    }
    page.text(&found.text)?;
    Ok(page.line(&format!("{} is trusted, as long as it stays as it is", path.display()))?)
}
