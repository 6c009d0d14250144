//! Openings of this process: Python names an entry by its number, and a closing presents its opening.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outlast_core::engine::openings;

/// Openings of the entries that this process has open, for all its threads.
#[derive(Default)]
pub struct Openings(Mutex<openings::Openings>);

impl Openings {
    pub fn lock(&self) -> MutexGuard<'_, openings::Openings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
