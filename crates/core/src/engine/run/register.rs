//! Register: gives a process an instance number in the store.

use crate::{
    engine::{
        Error,
        loaded::{Loaded, Need},
    },
    run::instance::{Identity, Instance, Life},
    words::{
        id::{InstanceNo, Micros},
        row::Row,
    },
};

/// Creates the process's instance and returns its number. Synced: a claim must not outlive its instance's row.
#[derive(Clone, Debug)]
pub struct Register {
    pub identity: Identity,
}

impl Register {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Numbers]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<InstanceNo, Error> {
        let no = l.numbers()?.instance;
        l.instances.push(Row::insert(Instance {
            no,
            identity: self.identity.clone(),
            life: Life::Live,
            heartbeat: 0,
            registered_at: now,
            last_seen: now,
            op_counter: 0,
        }));
        Ok(no)
    }
}
