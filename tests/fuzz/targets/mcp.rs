//! Lines of MCP: what is put into a line leaves it a message with the same members.
#![no_main]

use libfuzzer_sys::fuzz_target;
use outlast_server::mcp::message::{self, ToolCall};
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Ok(message) = message::read(data) else { return };
    let _ = (message::recorded(&message), message::is_failure(&message));
    if let Some(params) = message.params {
        let _ = ToolCall::read(Some(params));
    }
    let renamed = message::with_id(data, "\"an id\"");
    let read = message::read(&renamed).expect("another id leaves a message");
    assert_eq!(read.id.is_some(), message.id.is_some());
    assert_eq!(read.method, message.method);
    assert_eq!(read.params.map(|raw| raw.get()), message.params.map(|raw| raw.get()));

    let keyed = message::with_key(data, "a key");
    let read = message::read(&keyed).expect("a key leaves a message");
    assert_eq!(read.id.map(|raw| raw.get()), message.id.map(|raw| raw.get()));
    assert_eq!(message::with_key(&keyed, "another key"), keyed, "a key that is there stays");
    let (Ok(before), Ok(after)) = (arguments(message.params), arguments(read.params)) else { return };
    assert_eq!(before, after);
});

fn arguments(params: Option<&serde_json::value::RawValue>) -> serde_json::Result<Value> {
    let mut value: Value = serde_json::from_str(params.map_or("null", |raw| raw.get()))?;
    if let Some(members) = value.as_object_mut() {
        members.shift_remove("_meta");
    }
    Ok(value)
}
