//! Routes for the number of versions of each key that a namespace keeps.

use http::Response;
use outlast_core::{
    engine::{self, state::retain::Retain},
    state::{Retention, own::Owner},
    store,
};
use serde::Deserialize;
use serde_json::Value;

use super::{list::NAMESPACE, show::Kept};
use crate::{
    api::request::{ApiRequest, json},
    state::{Error, retention},
    wire::body::AnswerBody,
};

pub async fn get(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let namespace = asked.query.or("namespace", NAMESPACE);
    let of = namespace.clone();
    let found = asked.read(move |s| s.namespace(&of)).await?;
    json(&Kept::new(&namespace, found.map(|n| n.keep).unwrap_or_default(), None))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RetentionBody {
    keep: Value,
}

/// Sets how many versions of each key a namespace keeps, and removes older ones. Answers with the number removed.
pub async fn put(asked: ApiRequest) -> Result<Response<AnswerBody>, Error> {
    let namespace = asked.query.or("namespace", NAMESPACE);
    let wanted: RetentionBody = asked.json()?;
    let keep = match (wanted.keep.as_str(), wanted.keep.as_i64()) {
        (Some("all"), _) => Retention::All,
        (_, Some(n)) => Retention::Last(n),
        _ => {
            let text = format!("keep is {}, and \"all\" or a number of versions is wanted", wanted.keep);
            return Err(Error::BadRequest(text));
        }
    };
    let actor = asked.writer().actor()?;
    if actor.is_none() && Owner::of(&namespace) == Owner::Run {
        return Err(store::Error::from(engine::Error::ReadOnlyNamespace { namespace }).into());
    }
    let retain = Retain { actor, namespace: namespace.clone(), keep };
    let removed = asked.read(move |s| retention::retain(s, retain)).await?;
    json(&Kept::new(&namespace, keep, Some(removed)))
}
