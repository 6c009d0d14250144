//! Messages: an event or a digest as an endpoint gets it.

use std::collections::BTreeMap;

use bytes::Bytes;
use outlast_core::{
    events::{Event, Kind},
    store::RunView,
    words::{Micros, RunId},
};
use outlast_server::notify::Post;
use outlast_view as view;
use serde_json::{Value, json};

use super::endpoint::{Endpoint, Shape, Topic, Way};
use crate::{
    digest::{self, Ground},
    render::{
        amount::{cost, some, unpaid, usd},
        short::{called, short},
        time,
    },
};

/// Most characters of the text of an event's message.
const LONGEST: usize = 500;

/// Most characters of a message to Discord, without its link.
const DISCORD: usize = 1_800;

/// Message that tells a person about an event, or a digest.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// Stable id, made of the event's place in the store (of a digest: its end) and the endpoint's name.
    pub id: String,
    pub topic: &'static str,
    /// Id of the run; `None` for a named budget and for a digest.
    pub run: Option<RunId>,
    pub title: String,
    pub text: String,
    pub at: Micros,
    pub event: Option<view::Event>,
    pub digest: Option<Box<view::Digest>>,
    /// Address of the page that shows it.
    pub link: Option<String>,
}

impl Message {
    /// Builds the message of an event for one endpoint. `run`: the event's run, as it is now.
    pub fn of(
        event: &Event,
        topic: Topic,
        endpoint: &str,
        run: Option<&RunView>,
        ground: &Ground,
    ) -> Message {
        let halt = run.and_then(|view| view.run.awaited_outage().and(view.run.halt.as_ref()));
        let asks = event.kind == Kind::OutageBegan && event.about["needs_a_person"] == true;
        let words = if asks { "its provider needs a person" } else { topic.words() };
        let shown = match run {
            Some(view) => view.spec.name.clone().unwrap_or_else(|| short(view)),
            None => event.about["budget"].as_str().map_or("outlast".into(), |name| format!("budget {name}")),
        };
        let id = run.map(|view| view.run.id.clone());
        let mut text = text(event, topic, run.map(called).as_deref());
        if let Some((halt, view)) = halt.filter(|_| asks).zip(run) {
            text = format!("{text}\n{}", halt.hint(&called(view)));
        }
        if let Some(view) = run {
            text = format!("{}\n{text}", facts(view, event.at, &ground.host));
        }
        Message {
            id: format!("evt_{}_{}_{endpoint}", event.mark.transaction, event.mark.no),
            topic: topic.name(),
            title: format!("{shown}: {words}"),
            text: text.trim_end().chars().take(LONGEST).collect(),
            at: event.at,
            event: Some(view::Event::new(event, id.clone())),
            link: ground.link_to(id.as_ref()),
            run: id,
            ..Message::default()
        }
    }

    /// Builds the message of a digest for one endpoint.
    pub fn of_digest(digest: view::Digest, endpoint: &str) -> Message {
        Message {
            id: format!("digest_{}_{endpoint}", digest.until.0.0),
            topic: Topic::Digest.name(),
            title: digest::title(&digest),
            text: digest::text(&digest),
            at: digest.until.0,
            link: digest.link.clone(),
            digest: Some(Box::new(digest)),
            ..Message::default()
        }
    }

    /// Builds a test message, which only shows that an endpoint can be reached.
    pub fn test(endpoint: &str, now: Micros) -> Message {
        Message {
            id: format!("evt_test_{}_{endpoint}", now.0),
            topic: "test",
            title: "outlast: a test".into(),
            text: "this endpoint is reached".into(),
            at: now,
            ..Message::default()
        }
    }

    /// Returns the message as JSON, for webhooks and commands.
    pub fn json(&self) -> Value {
        let mut data = json!({
            "run": self.run, "title": self.title, "text": self.text, "event": self.event, "link": self.link,
        });
        if let Some(digest) = &self.digest {
            data["digest"] = json!(digest);
        }
        json!({ "id": self.id, "type": self.topic, "timestamp": time::rfc3339(self.at), "data": data })
    }

    /// Returns the HTTP post of the message to an endpoint; `None` if the endpoint is a command.
    pub fn post(&self, endpoint: &Endpoint, now: Micros) -> Option<Post> {
        let Way::Post { shape, secret, .. } = &endpoint.way else { return None };
        let link = self.link.as_ref().map_or_else(String::new, |link| format!("\n{link}"));
        let both = format!("{}\n{}", self.title, self.text);
        let mut headers = BTreeMap::new();
        let (body, content_type): (String, _) = match shape {
            Shape::Webhook => (self.json().to_string(), "application/json"),
            Shape::Slack => (json!({ "text": both + &link }).to_string(), "application/json"),
            // Nobody is pinged by what a run is called.
            Shape::Discord => (
                json!({ "content": cut(&both, DISCORD) + &link, "allowed_mentions": { "parse": [] } })
                    .to_string(),
                "application/json",
            ),
            Shape::Ntfy => {
                let title: String = self.title.chars().filter(|c| !c.is_control()).collect();
                headers.insert("title", title);
                headers.insert("x-outlast-id", self.id.clone());
                // A press on the message opens it.
                headers.extend(self.link.clone().map(|link| ("click", link)));
                (self.text.clone(), "text/plain; charset=utf-8")
            }
        };
        let secret = secret.clone().filter(|_| *shape == Shape::Webhook);
        let (id, at_s) = (self.id.clone(), now.0.div_euclid(1_000_000));
        Some(Post { id, at_s, body: Bytes::from(body), content_type, headers, secret })
    }
}

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// Returns how long the run took by `at`, what it cost so far, and where it runs.
fn facts(view: &RunView, at: Micros, host: &str) -> String {
    let (run, own) = (&view.run, view.run.own);
    let took = run.began_at.map(|began| time::about(at.ms_since(began)));
    let cost = match &view.spec.login {
        Some(_) => format!("list price {}, not billed", cost(view)),
        None => cost(view),
    };
    let cost = format!("{}, {cost}{}", some(own.paid_calls(), "call"), unpaid(own.unpaid_calls));
    took.into_iter().chain([cost, format!("on {host}")]).collect::<Vec<_>>().join("; ")
}

/// Returns the message's text: the facts that a person needs, and the command to type.
fn text(event: &Event, topic: Topic, run: Option<&str>) -> String {
    let about = &event.about;
    let word = |key: &str| about[key].as_str().unwrap_or_default();
    let show = run.map_or_else(String::new, |run| format!("\noutlast show {run}"));
    match topic {
        Topic::Approval => {
            let id = word("id");
            format!("{}\noutlast approve {id}, or outlast approve {id} --deny", word("tool"))
        }
        Topic::Budget50 | Topic::Budget80 | Topic::Budget100 => {
            let amount = |key: &str| match about[key].as_i64() {
                Some(nano) if word("unit") == "cost_nano_usd" => format!("{} usd", usd(nano)),
                Some(n) => format!("{n} {}", word("unit")),
                None => String::new(),
            };
            format!("{} of {} spent", amount("spent"), amount("limit"))
        }
        Topic::Overrun => {
            format!("{} usd beyond its hold{show}", usd(about["nano_usd"].as_i64().unwrap_or(0)))
        }
        Topic::Doubt => {
            let held = usd(about["held_nano_usd"].as_i64().unwrap_or(0));
            format!("a {} holds {held} usd until its outcome is known{show}", word("kind"))
        }
        Topic::Interrupted => {
            let resume = run.map_or_else(String::new, |run| format!("\noutlast resume {run}"));
            format!("{}{resume}", word("message")).trim_start().to_owned()
        }
        _ => format!("{}{show}", word("message")).trim_start().to_owned(),
    }
}
