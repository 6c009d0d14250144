//! Faces of other systems: their clients, unmodified, find here what they know. Translation only.

pub mod riskkernel;
