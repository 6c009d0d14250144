//! Effects that a restoration of files does not undo: a run's tool calls that may have changed something elsewhere.

use std::collections::HashSet;

use outlast_core::{
    engine::tool::SCOPE,
    journal::{Kind, Role, State},
    reads::entries,
    store::{self, Store},
    words::id::{RunNo, Seq},
};
use outlast_server::{dialect::conversation, door::StoredAnswer};
use serde::Serialize;

/// Tools of known agents that only read and write files, by their names. Any other may have effects elsewhere.
const FILE_TOOLS: [&str; 22] = [
    "apply_patch",
    "edit",
    "edit_file",
    "glob",
    "grep",
    "list",
    "list_directory",
    "ls",
    "multiedit",
    "notebookedit",
    "patch",
    "read",
    "read_file",
    "read_many_files",
    "replace",
    "search_file_content",
    "str_replace_based_edit_tool",
    "todowrite",
    "update_plan",
    "view",
    "write",
    "write_file",
];

/// Tool call, or approval, that stays as it is when files are brought back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Effect {
    /// Entry of the call of whose answer it is a part, or its own.
    pub entry: i64,
    pub tool: String,
    pub input: String,
}

/// Returns the effects of a run's entries from `from` on. Errors: the store's.
pub fn since(store: &dyn Store, run: RunNo, from: Seq) -> Result<Vec<Effect>, store::Error> {
    let (mut effects, mut seen) = (Vec::new(), HashSet::new());
    for entry in entries::each(store, run) {
        let entry = entry?;
        if entry.seq < from {
            continue;
        }
        let name = entry.key.clone().unwrap_or_default();
        match entry.kind {
            Kind::Call if entry.state == State::Done => {
                let kept = store.payload(run, entry.seq, Role::Answer)?.and_then(|kept| kept.decode().ok());
                // `outlast verify` reports payloads that cannot be read.
                let answer = kept.and_then(|bytes| StoredAnswer::from_bytes(bytes.to_vec().into()).ok());
                for call in conversation::called(&answer.map(|answer| answer.body).unwrap_or_default()) {
                    if seen.insert(call.id) && !FILE_TOOLS.contains(&call.name.to_lowercase().as_str()) {
                        effects.push(Effect { entry: entry.seq.0, tool: call.name, input: call.input });
                    }
                }
            }
            // Those of an agent's hooks are in the answers, too.
            Kind::Tool if &*entry.scope != SCOPE && entry.state != State::Void => {
                effects.push(Effect { entry: entry.seq.0, tool: name, input: String::new() });
            }
            Kind::Approval => {
                effects.push(Effect { entry: entry.seq.0, tool: "approval".into(), input: name });
            }
            _ => {}
        }
    }
    Ok(effects)
}
