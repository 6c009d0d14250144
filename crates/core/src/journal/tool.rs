//! Details of tool calls that Outlast makes for an agent.

use serde::{Deserialize, Serialize};

/// Details of a tool call that goes through Outlast, for example over MCP. Calls that only a hook saw have none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolDetail {
    /// Name of the server or library that has the tool.
    pub server: String,
    pub tool: String,
    /// The client's own id of the call; `None` from a client that gives none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Other ids under which later lives asked for the same call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub later_ids: Vec<String>,
    /// Number of times that the call may have been sent. At 0 the call is only reserved: on disk, and certainly not
    /// sent.
    pub sends: i64,
    /// Whether the call may be sent again while its outcome is unknown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub repeatable: bool,
    /// Whether a person decided the outcome.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resolved: bool,
}

impl ToolDetail {
    /// Returns the name by which people and policies know the tool: `SERVER/TOOL`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.server, self.tool)
    }

    /// Returns whether a client knows the call by this id.
    pub fn is_named(&self, id: &str) -> bool {
        self.id.as_deref() == Some(id) || self.later_ids.iter().any(|later| later == id)
    }

    /// Returns whether the call may have been sent, and so may have had its effect.
    pub fn is_sent(&self) -> bool {
        self.sends > 0
    }
}
