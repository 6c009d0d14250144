//! Lives of a run: the processes that drove its attempts, and what took an attempt together with its process.

use std::collections::BTreeMap;

use crate::{
    named,
    run::{Attempt, Identity, Instance},
    store::{self, RunView, Store},
    words::InstanceNo,
};

named! {
    /// What an attempt was lost with, when nobody saw it end.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Loss {
        /// Its machine was started anew.
        Machine "its machine was rebooted",
        Supervisor "lost with its supervisor",
        /// A loop script's shell.
        Shell "its shell was killed",
        /// A program with the engine inside.
        Program "its process was killed",
    }
}

/// Processes that drove a run's attempts, those that are over too.
#[derive(Clone, Debug, Default)]
pub struct Drivers {
    instances: BTreeMap<InstanceNo, Instance>,
    /// Process that looks.
    here: Option<Identity>,
}

impl Drivers {
    /// Reads who drove `attempts`. `here`: process that looks; it tells of its machine's reboot before the run goes on.
    pub fn read(
        store: &dyn Store,
        attempts: &[Attempt],
        here: Option<Identity>,
    ) -> Result<Drivers, store::Error> {
        let mut instances = BTreeMap::new();
        for no in attempts.iter().filter_map(|a| a.instance) {
            if !instances.contains_key(&no)
                && let Some(instance) = store.instance(no)?
            {
                instances.insert(no, instance);
            }
        }
        Ok(Drivers { instances, here })
    }

    pub fn of(&self, a: &Attempt) -> Option<&Instance> {
        self.instances.get(&a.instance?)
    }

    /// Tells what one of the run's `attempts` was lost with; `None` for an attempt that was seen to end, or is open.
    ///
    /// The process of the next attempt, or the one that looks, shows whether their machine was started anew since.
    pub fn loss(&self, view: &RunView, attempts: &[Attempt], a: &Attempt) -> Option<Loss> {
        a.exit.as_ref().filter(|exit| exit.lost)?;
        let next = attempts.iter().find(|later| later.no > a.no && later.instance != a.instance);
        let after = next.map_or(self.here.as_ref(), |next| self.of(next).map(|driver| &driver.identity));
        let driver = self.of(a).map(|driver| &driver.identity);
        let is_new_boot = driver
            .zip(after)
            // An empty boot id is unknown, and tells of no boot.
            .filter(|(driver, after)| !driver.boot_id.is_empty() && !after.boot_id.is_empty())
            .is_some_and(|(driver, after)| after.host == driver.host && after.boot_id != driver.boot_id);
        Some(match &view.spec.command {
            _ if is_new_boot => Loss::Machine,
            Some(_) => Loss::Supervisor,
            None if view.spec.is_shell_loop() => Loss::Shell,
            None => Loss::Program,
        })
    }
}
