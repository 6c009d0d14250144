//! Our own routes, below `/v1`: the read API, acts of people, the state, approvals, RiskKernel's. The door hands each
//! request to them. `docs/reference/openapi.json` describes them; a test compares it with their tables.

pub mod acts;
pub mod approvals;
pub mod fleet;
mod named_budgets;
pub(crate) mod query;
pub mod read;
pub mod riskkernel;
pub(crate) mod segments;
pub mod state;
