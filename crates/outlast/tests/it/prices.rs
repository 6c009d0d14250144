//! `outlast prices`: what would be charged, and where the figure is from.

use crate::line::outlast;

fn text(dir: &std::path::Path, args: &[&str]) -> String {
    let done = outlast(dir).args(args).assert().success();
    String::from_utf8(done.get_output().stdout.clone()).unwrap()
}

fn document(dir: &std::path::Path, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&text(dir, &[&["prices", "--json"], args].concat())).unwrap()
}

#[test]
fn a_models_prices_are_shown_by_tier_and_size_with_where_they_are_from() {
    let dir = tempfile::tempdir().unwrap();
    let shown = text(dir.path(), &["prices", "gemini-2.5-pro"]);
    for part in ["usd per million tokens", "200000", "2.50", "batch", "the built-in table", "hash "] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Nothing is made for it, not even a store.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_call_costs_what_would_be_settled() {
    let dir = tempfile::tempdir().unwrap();
    for (args, nano) in [
        (&["gpt-4o-mini", "--input", "1000", "--output", "500"][..], 450_000),
        (&["gpt-4o-mini", "--input", "1000", "--cached", "500", "--output", "500"], 412_500),
        (&["gpt-4o-mini", "--input", "1000", "--output", "500", "--tier", "batch"], 225_000),
        (&["gemini-2.5-pro", "--input", "200001", "--output", "100"], 500_002_500 + 1_500_000),
        (&["dashscope/qwen-turbo", "--output", "100", "--reasoning", "60"], 38_000),
        (&["text-embedding-3-small", "--input", "1000"], 20_000),
        // Found without its prefix and its date.
        (&["openai/gpt-4o-mini-2024-07-18", "--input", "1000", "--output", "500"], 450_000),
    ] {
        assert_eq!(document(dir.path(), args)["charged_nano_usd"], nano, "{args:?}");
    }
    assert!(document(dir.path(), &["gpt-4o-mini"])["charged_nano_usd"].is_null());
}

#[test]
fn a_file_and_an_upstream_have_prices_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = r#"{"mine": {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}}"#;
    std::fs::write(dir.path().join("prices.json"), file).unwrap();
    let own = document(dir.path(), &["mine", "--prices", "prices.json", "--input", "10"]);
    assert_eq!((own["source"].as_str(), own["charged_nano_usd"].as_i64()), (Some("file"), Some(10_000)));
    let settings = dir.path().join(".config/outlast");
    std::fs::create_dir_all(&settings).unwrap();
    let upstream = "[upstreams.house]\nbase_url = \"http://h/v1\"\nmodels = {fast = \"gpt-4o-mini\"}\n";
    std::fs::write(settings.join("outlast.toml"), upstream).unwrap();
    let named = document(dir.path(), &["fast", "--upstream", "house", "--input", "10"]);
    assert_eq!(
        (named["model"].as_str(), named["charged_nano_usd"].as_i64()),
        (Some("gpt-4o-mini"), Some(1500))
    );
    outlast(dir.path()).args(["prices", "fast", "--upstream", "nobody"]).assert().code(2);
}

#[test]
fn a_model_without_a_price_is_an_error_and_never_free() {
    let dir = tempfile::tempdir().unwrap();
    let done = outlast(dir.path()).args(["prices", "nobody-knows-me"]).assert().code(1);
    let told = String::from_utf8(done.get_output().stderr.clone()).unwrap();
    assert!(told.contains("no price is known") && told.contains("--prices FILE"), "{told}");
}
