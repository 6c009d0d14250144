//! What whoever runs `outlast serve` sees and does: divergences, probes, drains, counters, new settings.

use crate::{
    bed::Bed,
    web::{call, free_port, post, serve},
};

#[test]
fn divergence_is_shown_with_both_requests_and_the_first_place_that_differs() {
    let bed = Bed::new();
    let at = free_port();
    let _server = serve(&bed, at, &[]);
    let ask = |label: &str, text: &str| {
        post(at, &[("x-outlast-run", "r"), ("x-outlast-attempt", label)], &call(text)).unwrap().status
    };
    assert_eq!([ask("a", "one"), ask("a", "two"), ask("a", "three")], [200; 3]);
    bed.does(&["journal", "r", "--divergence"]).code(0).tells(&["no attempt has asked for something new"]);
    assert_eq!([ask("b", "one"), ask("b", "zwei")], [200; 2]);
    let told = bed.does(&["journal", "r", "--divergence"]).code(0);
    told.tells(&[
        "attempt 2 left its past at entry 4, with 2 recorded answers untaken",
        "recorded  entry 2, attempt 1, gpt-4o-mini /v1/chat/completions",
        "new       entry 4, attempt 2,",
        "they differ first at /messages/0/content",
        "recorded  \"two\"",
        "new       \"zwei\"",
    ]);
    let json = bed.json(&["journal", "r", "--divergence"]);
    let one = &json["divergences"][0];
    assert_eq!(one["recorded"]["request"], call("two"));
    assert_eq!(one["new"]["request"], call("zwei"));
    let wanted = serde_json::json!({"path": "/messages/0/content", "recorded": "two", "new": "zwei"});
    assert_eq!((&one["difference"], &one["differs_in"]), (&wanted, &"body".into()));
}
