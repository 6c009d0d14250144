//! `outlast stop` and `outlast cancel`: what a run is told to do.

use outlast::render::look::Look;
use outlast_core::run::status::Status;

use crate::{
    commands::{act, json, refused, shown, status},
    story::{Story, printed},
};

#[test]
fn a_run_without_a_supervisor_stops_at_once() {
    let story = Story::whole();
    let told = shown(&story, "outlast stop 0190");
    assert_eq!(told, "run_0190-web  interrupted\n  → outlast resume run_0190-web\n");
    assert_eq!(status(&story, "run_0190-web"), Status::Interrupted);
}

#[test]
fn a_driven_run_is_asked_and_waited_for() {
    let story = Story::empty();
    let run = story.start("driven", None, Default::default());
    story.claim(run, story.register(1), false);
    let mut code = None;
    let look = Look::default();
    let told = printed(look, |page| code = act(&story, "outlast stop driven --wait 1s", page).ok());
    assert_eq!(
        (code, told.as_str()),
        (Some(1), "driven  its supervisor was asked to stop it, and has not yet\n")
    );
    let told = printed(look, |page| code = act(&story, "outlast stop driven --wait 0s", page).ok());
    assert_eq!((code, told.as_str()), (Some(0), "driven  its supervisor was asked to stop it\n"));
    assert!(json(&story, "outlast show driven --json")["stop_requested"].as_bool().unwrap());
}

#[test]
fn a_cancelled_run_says_why() {
    let story = Story::whole();
    let told = shown(&story, "outlast cancel 0190 --reason wrong-file");
    assert_eq!(told, "run_0190-web  cancelled\n");
    assert!(shown(&story, "outlast show 0190").contains("\n  wrong-file\n"));
    let error = refused(&story, "outlast cancel research-43");
    assert_eq!((error.code(), error.exit()), ("run_ended", 1));
}

#[test]
fn a_halt_outlives_a_cancel() {
    let story = Story::whole();
    let mut code = None;
    printed(Look::default(), |page| code = act(&story, "outlast cancel research-42", page).ok());
    assert_eq!((code, status(&story, "research-42")), (Some(75), Status::Halted));
}
