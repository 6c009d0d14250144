//! `outlast trust`: lets the settings file of this directory count, as it is now.

use serde_json::json;

use crate::{
    cli::TrustArgs,
    program::error::{CliError, InputError},
    render::look::Page,
    settings::{config, file, surroundings::Surroundings, trust},
};

/// Prints the directory's settings file and trusts it, or withdraws the trust.
///
/// Durable before it returns. Errors: `no_settings` without a file; those of settings, for a file that nobody can use.
pub fn trust(around: &Surroundings, args: &TrustArgs, page: &mut Page) -> Result<(), CliError> {
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
