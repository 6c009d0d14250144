//! Verbs on approvals.

pub mod decide_approval;
pub mod request_approval;
