//! Files of runs beside the store, for the page and for commands of another machine.

use std::{io, sync::Arc};

use outlast_core::{
    store::Store,
    words::{AttemptNo, RunId},
};
use outlast_server::door::RunFiles;

use crate::{
    files,
    logs::read,
    program::{context::Context, run_directory::RunDirectory},
};

/// Files beside the store of a context.
pub struct Beside(Context);

impl Beside {
    pub fn of(context: &Context) -> Arc<dyn RunFiles> {
        Arc::new(Beside(context.clone()))
    }

    fn directory(&self, run: &RunId) -> io::Result<RunDirectory> {
        RunDirectory::of(&self.0.place, run, &self.0.around).map_err(io::Error::other)
    }
}

impl RunFiles for Beside {
    fn last_lines(&self, run: &RunId, attempt: AttemptNo, most: usize) -> io::Result<Vec<String>> {
        read::last_lines(&self.directory(run)?.logs(), attempt, most)
    }

    fn forget(&self, store: &dyn Store, run: &RunId) -> io::Result<()> {
        self.directory(run)?.remove()?;
        files::collect(store, &self.0).map_err(io::Error::other)
    }
}
