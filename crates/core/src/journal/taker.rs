//! Takers: who receives a call's answer.

use serde::{Deserialize, Serialize};

use crate::words::id::{AttemptNo, InstanceNo};

/// Connection that receives a call's answer. While its process lives, no other request of its attempt has that answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taker {
    pub attempt: AttemptNo,
    /// Process of the connection.
    pub instance: InstanceNo,
    /// Number of the connection in its process.
    pub connection: u64,
    /// Whether the attempt counts it among the recorded answers that it is receiving.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
}
