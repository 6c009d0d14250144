//! HTTP as all routes read and write it: bodies, headers, callers, refusals.

pub(crate) mod access;
pub(crate) mod body;
pub(crate) mod credentials;
pub(crate) mod encoding;
pub(crate) mod headers;
pub(crate) mod incoming;
pub(crate) mod network;
pub(crate) mod origin;
pub(crate) mod refuse;
pub(crate) mod sessions;
pub(crate) mod shown;
pub(crate) mod socket;
pub(crate) mod target;
pub(crate) mod tokens;
pub(crate) mod who;
