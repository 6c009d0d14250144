//! Names that most of this store uses: the rows, what a transaction knows of them, and the statements that read and write them.

pub use outlast_core::{
    engine::loaded::Key,
    envelope::{Budget, Envelope},
    journal::Entry,
    run::{Attempt, Instance, Lease, Run},
    store::Error,
    words::{EnvelopeNo, InstanceNo, Micros, Row, RunNo, Touch},
};

pub use crate::{
    postgres::{
        connect::Link,
        known::{Hold, Known},
        schema::SchemaName,
        statement::{Named, Param, failure},
        write::{Statement, Values},
    },
    rows::{Cell, Dialect, Stored},
};

pub(super) use super::rows;
