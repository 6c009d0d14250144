//! Routes of memory beyond a run: facts, which are kept in the state, and files, of which there are none.

use outlast_core::{
    reads::places,
    state::{At, Item, Name},
    store::Store,
    words::{Micros, calendar::rfc3339},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Error;
use crate::{
    api::{
        request::{Answered, ApiRequest, created, json},
        state::show::Runs,
    },
    state::Writer,
};

/// Agent under whose name facts are kept in the state: `outlast state get NAMESPACE facts KEY`.
const AGENT: &str = "facts";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Fact {
    namespace: String,
    key: String,
    value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    updated_at: String,
}

/// Lists all facts of a namespace as of one moment, sorted by key.
pub async fn facts(asked: ApiRequest) -> Answered<Error> {
    let namespace = asked.query.or("namespace", "");
    let found = asked.read(move |store| {
        let at = At::Position(store.state_position()?);
        let mut runs = Runs::default();
        places::keys(store, &namespace, AGENT, at)?
            .iter()
            .map(|item| fact(store, &mut runs, item))
            .collect::<Result<Vec<_>, _>>()
    });
    json(&found.await?)
}

fn fact(store: &dyn Store, runs: &mut Runs, item: &Item) -> Result<Fact, outlast_core::store::Error> {
    let bytes = item.value.as_deref().unwrap_or_default();
    // Other interfaces may have written any value there. What is not a JSON string is shown as its text.
    let value = serde_json::from_slice(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes).into_owned());
    let (namespace, key) = (item.namespace.clone(), item.key.clone());
    let run_id = runs.by(store, item)?.run.map(|id| id.to_string());
    Ok(Fact { namespace, key, value, run_id, updated_at: rfc3339(item.at) })
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FactBody {
    namespace: String,
    key: String,
    value: String,
    run_id: String,
}

/// Writes a fact in the name of the run that the body names, or of no run.
pub async fn put_fact(asked: ApiRequest) -> Answered<Error> {
    let wanted: FactBody = asked.json()?;
    if wanted.key.is_empty() {
        return Err(Error::bad("key is wanted"));
    }
    let name = Name::new(wanted.namespace.as_str(), AGENT, wanted.key.as_str());
    let change = asked.api.desk.set(name, json!(wanted.value).to_string().into_bytes()).await;
    let (at, run_id) = if wanted.run_id.is_empty() {
        (asked.api.desk.put(Writer::NoRun, vec![change], None).await?.at, None)
    } else {
        let run = asked.named(&wanted.run_id).await?.run.no;
        let put = async {
            let (actor, entered) = asked.enter(run).await?;
            let writer = Writer::Run(Some((actor, entered.slot)));
            Ok::<Micros, Error>(asked.api.desk.put(writer, vec![change], None).await?.at)
        };
        (asked.working(run, put.await).await?, Some(wanted.run_id))
    };
    let FactBody { namespace, key, value, .. } = wanted;
    created(&Fact { namespace, key, value, run_id, updated_at: rfc3339(at) })
}

/// Answers with an empty list. RiskKernel lists Markdown files here, which Outlast does not keep.
pub async fn list(_: ApiRequest) -> Answered<Error> {
    json(&json!([]))
}

pub async fn read(asked: ApiRequest) -> Answered<Error> {
    let name = asked.query.wanted("name")?;
    Err(Error::NoMemory { name: name.chars().take(140).collect() })
}
