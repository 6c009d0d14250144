//! Routes of other systems, for their unmodified clients. Translation only.

pub mod riskkernel;
