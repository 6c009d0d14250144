//! `outlast rm`: runs that are removed.

use outlast::{
    program::{context::Context, error::CliError, run_directory::RunDirectory},
    render::look::Look,
    settings::store_address::StoreAddress,
};
use outlast_core::{
    engine::run::{end_attempt::Then, process::DeclareDead},
    run::{Spec, attempt::Exit, status::Status},
    words::id::{RunId, Seq},
};

use crate::{
    commands::{act_in, context, json, shown, status},
    story::{Story, printed},
};

/// Types `outlast rm`, and returns what it has printed.
fn removed(context: &Context, story: &Story, typed: &[&str]) -> (String, Result<u8, CliError>) {
    let mut done = None;
    let told = printed(Look::default(), |page| done = Some(act_in(context, story, typed, page)));
    (told, done.unwrap())
}

#[test]
fn all_ended_runs_with_a_tag_are_removed_and_one_that_has_not_ended_is_named() {
    let story = Story::empty();
    let spec = |customer: &str| Spec {
        tags: [("customer".to_owned(), customer.to_owned())].into(),
        ..Spec::default()
    };
    for (id, customer) in [("a", "acme"), ("b", "other"), ("c", "acme"), ("d", "acme")] {
        let run = story.start(id, None, spec(customer));
        let actor = story.claim(run, story.register(1), false);
        if id != "c" {
            story.end(actor, Exit { code: Some(0), ..Exit::default() }, Then::Complete);
        }
    }
    story.clock.advance_ms(1);
    let (told, done) = removed(&context(), &story, &["outlast", "rm", "--tag", "customer=acme"]);
    assert_eq!(told, "1 run deleted\n");
    assert_eq!(done.unwrap_err().code(), "run_not_ended");
    // The newest run of a store stays, too.
    let (told, done) = removed(&context(), &story, &["outlast", "rm", "d"]);
    let error = done.unwrap_err();
    assert_eq!((told.as_str(), error.code()), ("", "run_stays"));
    assert!(error.to_string().contains("the newest run of a store"), "{error}");
    let left = json(&story, "outlast ls --json");
    let ids: Vec<&str> =
        left["runs"].as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap()).collect();
    assert_eq!(ids, ["d", "c", "b"]);
}

#[test]
fn a_run_that_has_ended_is_removed_with_what_was_kept_of_it() {
    let story = Story::whole();
    let kept = tempfile::tempdir().unwrap();
    let context = Context { place: StoreAddress::File(kept.path().join("runs.db")), ..context() };
    let id = RunId::new("research-43").unwrap();
    let of_run = RunDirectory::of(&context.place, &id, &context.around).unwrap();
    let rm = |run: &str| {
        let (told, done) = removed(&context, &story, &["outlast", "rm", run]);
        done.map(|_| told)
    };
    std::fs::create_dir_all(of_run.logs()).unwrap();
    assert_eq!(rm("research-42").unwrap_err().code(), "run_not_ended");
    let spent = shown(&story, "outlast spend --by day,model");
    // A name means, for this verb, the run of it that has ended.
    assert_eq!(rm("nightly").unwrap(), "research-43  deleted\n");
    assert_eq!(shown(&story, "outlast spend --by day,model"), spent, "what it has cost stays");
    let by_run = shown(&story, "outlast spend --by run");
    assert!(by_run.contains("(none)") && !by_run.contains("research-43"), "{by_run}");
    assert_eq!(rm("research-43").unwrap_err().code(), "unknown_run");
    assert!(!of_run.path().exists());
    assert_eq!(status(&story, "research-42"), Status::Halted);
    shown(&story, "outlast cancel 0190");
    assert_eq!(rm("0190").unwrap_err().code(), "call_in_flight");
    let run = story.store.run_no(&RunId::new("run_0190-web").unwrap()).unwrap().unwrap();
    let instance = story.store.entry(run, Seq(1)).unwrap().unwrap().instance.unwrap();
    story.ask(DeclareDead { instance, heartbeat_seen: 0, left: false, heir: None });
    // The newest run holds the place of the next one's number.
    assert_eq!(rm("0190").unwrap_err().code(), "run_stays");
}
