//! Verbs on the items of a batch.

pub mod claim_item;
pub mod expect_items;
pub mod record_item;
pub mod reset_item;
pub mod return_item;
