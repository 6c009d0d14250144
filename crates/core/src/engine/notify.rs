//! Records how far the deliveries to an endpoint have come.

use std::sync::Arc;

use crate::{engine::prelude::*, events::delivery::Delivery};

/// Writes `delivery` in place of the stored row, if that row still has the same version. Returns whether it was
/// written.
///
/// Two processes never both believe that they deliver to one endpoint: each change names the version that it saw.
#[derive(Clone, Debug)]
pub struct PutDelivery {
    pub delivery: Delivery,
}

impl PutDelivery {
    pub fn needs(&self) -> Vec<Need> {
        vec![Need::Delivery(Arc::from(self.delivery.name.as_str()))]
    }

    pub fn decide(&self, l: &mut Loaded, _now: Micros) -> Result<bool, Error> {
        let stored = l.deliveries.iter().find(|d| d.name == self.delivery.name).map_or(0, |d| d.version);
        if stored != self.delivery.version {
            return Ok(false);
        }
        l.new_delivery = Some(Delivery { version: stored + 1, ..self.delivery.clone() });
        Ok(true)
    }
}
