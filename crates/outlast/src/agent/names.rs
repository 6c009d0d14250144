//! Names of the agents that Outlast knows, which no declared agent may take.

/// Names of the built-in adapters, in their order.
pub const BUILT_IN: [&str; 7] = ["claude", "codex", "opencode", "aider", "gemini", "qwen", "copilot"];
