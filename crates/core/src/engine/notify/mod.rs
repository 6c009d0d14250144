//! Verbs of deliveries to endpoints.

pub mod put_delivery;
