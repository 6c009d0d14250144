//! Verbs on named budgets.

pub mod apply_budget;
pub mod raise_budget;
pub mod remove_budget;
pub mod set_budget;
