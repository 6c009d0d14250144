//! Retain: how many versions of each key a namespace keeps.

use crate::{
    engine::Error,
    id::Micros,
    loaded::{Loaded, Need, Row},
    state::{Keep, Namespace},
};

/// Sets what compaction leaves in a namespace. Removes nothing by itself.
///
/// Errors: `BadKeep` when fewer than one version would be kept.
#[derive(Clone, Debug)]
pub struct Retain {
    pub namespace: String,
    pub keep: Keep,
}

impl Retain {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Namespace(self.namespace.clone())]
    }

    pub fn decide(&self, l: &mut Loaded, now: Micros) -> Result<(), Error> {
        if let Keep::Last(n) = self.keep
            && n < 1
        {
            return Err(Error::BadKeep { had: n });
        }
        match l.state.namespaces.get_mut(&self.namespace) {
            Some(row) if row.value.keep == self.keep => {}
            Some(row) => row.touched().keep = self.keep,
            None => {
                let name = self.namespace.clone();
                let row = Row::insert(Namespace { name: name.clone(), commit: 0, at: now, keep: self.keep });
                l.state.namespaces.insert(name, row);
            }
        }
        Ok(())
    }
}
