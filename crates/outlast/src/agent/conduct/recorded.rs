//! MCP servers of one attempt: a recorder before each that may have one.

use std::path::Path;

use outlast_core::{
    engine::actor::Actor,
    store::{self, Ask as _, Durability, Store},
};

use super::Conduct;
use crate::{
    agent::servers::{self, Handed},
    program::{context::Context, file, say::say},
};

impl Conduct {
    /// Puts a recorder before the agent's MCP servers, and returns the values by which it is told. Keeps with the run, for
    /// people, which servers are recorded. Without access to the store a recorder could not start.
    pub(super) async fn servers(
        &self,
        store: &dyn Store,
        actor: Actor,
        knows_store: bool,
        context: &Context,
    ) -> Result<Vec<String>, store::Error> {
        if !self.records_servers {
            return Ok(Vec::new());
        }
        let Ok(program) = crate::program() else { return Ok(Vec::new()) };
        let machine = Path::new("/etc");
        let place = servers::StartContext {
            around: &context.around,
            directory: &self.directory,
            machine,
            program: &program,
        };
        let mut found = self.adapter.servers(&self.line, place);
        if !knows_store {
            found = found.confined();
        }
        let handed = match found.handed {
            Handed::Nothing => Vec::new(),
            Handed::Words(words) => words,
            Handed::File(config) => {
                let path = self.files.join("mcp.json");
                let written = self
                    .run_files
                    .make()
                    .and_then(|()| file::write(&self.files, &path, config.to_string().as_bytes()));
                if let Err(e) = written {
                    say(&format!("no MCP server is recorded: cannot write {}: {e}", path.display()));
                    return Ok(Vec::new());
                }
                vec![path.to_string_lossy().into_owned()]
            }
        };
        let before = servers::find(store, self.run, self.name.as_deref())?;
        if before.unwrap_or_default() != found.told {
            found.told.words().iter().for_each(|words| say(words));
            store.ask(servers::keep(actor, self.name.as_deref(), &found.told), Durability::Synced).await?;
        }
        Ok(handed)
    }
}
