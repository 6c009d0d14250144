//! Upstreams by name: `[upstreams.NAME]` of the user's own `outlast.toml`.
//!
//! A directory's file may not say where calls go: see `config`.

use std::{
    collections::BTreeMap,
    num::NonZeroU64,
    path::{Path, PathBuf},
    sync::Arc,
};

use outlast_core::{call::Rate, price::PriceTable};
use outlast_server::{
    dialect::CostField,
    door::{AuthHeader, Key, Named, Pattern},
};
use serde::Deserialize;

use crate::settings::{
    file::{self, Error},
    keys,
    surroundings::Surroundings,
    values,
};

/// Name of the table of upstreams in `outlast.toml`.
pub const TABLE: &str = "upstreams";

/// Upstream as it is written in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    base_url: String,
    api_key_env: Option<String>,
    api_key_file: Option<PathBuf>,
    auth_header: Option<String>,
    #[serde(default)]
    models: BTreeMap<String, String>,
    #[serde(default)]
    models_match: Vec<String>,
    /// Largest number of requests a minute; `tpm`: of tokens.
    rpm: Option<NonZeroU64>,
    tpm: Option<NonZeroU64>,
    prices: Option<PathBuf>,
    #[serde(default)]
    stream_usage: StreamUsage,
    cost_field: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StreamUsage {
    #[default]
    Inject,
    Never,
}

/// Upstream of `outlast.toml`, with the environment variable of its key.
#[derive(Clone)]
pub struct Upstream {
    pub named: Arc<Named>,
    /// Environment variable in which an agent finds its run token in place of the upstream's key; `None` if no variable
    /// holds the key.
    pub key_variable: Option<String>,
}

/// Reads the upstreams of the user's own `outlast.toml`, with their files of keys and of prices.
///
/// Errors name the file and the key in it.
pub fn load(around: &Surroundings) -> Result<Vec<Upstream>, Error> {
    let Some((path, tables)) = file::own_tables(around, TABLE)? else { return Ok(Vec::new()) };
    let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
    let each = tables.into_iter().map(|(name, value)| {
        let read = read(&name, value, &directory, around);
        read.map_err(|why| Error::bad(&path, format!("{TABLE}.{name}"), why))
    });
    let all: Vec<Upstream> = each.collect::<Result<_, _>>()?;
    let mut seen = BTreeMap::new();
    for named in all.iter().map(|u| &u.named) {
        for pattern in &named.models_match {
            let Some(other) = seen.insert(pattern, &named.name) else { continue };
            let why = format!("the pattern \"{pattern}\" is {TABLE}.{other}'s already");
            return Err(Error::bad(&path, format!("{TABLE}.{}.models_match", named.name), why));
        }
    }
    Ok(all)
}

fn read(name: &str, value: toml::Value, directory: &Path, around: &Surroundings) -> Result<Upstream, String> {
    let checked = Named::name(name).map_err(|e| e.to_string())?;
    let written: Written = file::read_as(value)?;
    let base = values::base_url(&written.base_url).map_err(|e| format!("base_url: {e}"))?;
    let key = key(&written, directory, around)?;
    let auth = match &written.auth_header {
        None => AuthHeader::Bearer,
        Some(text) if text.eq_ignore_ascii_case("authorization") => AuthHeader::Bearer,
        Some(text) => {
            let header = text.to_ascii_lowercase().parse();
            AuthHeader::Header(header.map_err(|_| format!("auth_header: not a header's name: {text:?}"))?)
        }
    };
    let prices = written.prices.as_ref().map(|path| prices(&directory.join(path))).transpose()?;
    let cost_field = written.cost_field.as_deref().map(str::parse::<CostField>).transpose();
    let wants_key = match (&written.api_key_env, &written.api_key_file) {
        (Some(variable), _) => Some(format!("the variable {variable}")),
        (None, Some(file)) => Some(file.display().to_string()),
        (None, None) => None,
    };
    let models_match = written.models_match.iter().map(|text| text.parse::<Pattern>());
    let rate = Rate { requests: written.rpm.map(Into::into), tokens: written.tpm.map(Into::into) };
    let named = Named {
        name: checked,
        provider: Named::provider(&base, key).map_err(|e| e.to_string())?,
        auth,
        wants_key,
        models: written.models,
        models_match: models_match.collect::<Result<_, _>>().map_err(|e| format!("models_match: {e}"))?,
        rate: (!rate.is_any()).then_some(rate),
        prices,
        asks_usage: written.stream_usage == StreamUsage::Inject,
        cost_field: cost_field.map_err(|e| format!("cost_field: {e}"))?,
    };
    Ok(Upstream { named: Arc::new(named), key_variable: written.api_key_env })
}

/// Returns the upstream's key. `None` if none is wanted, or its variable is not set: the upstream's calls are
/// then refused with that variable's name.
fn key(written: &Written, directory: &Path, around: &Surroundings) -> Result<Option<Key>, String> {
    match (&written.api_key_env, &written.api_key_file) {
        (Some(_), Some(_)) => Err("wanted one of api_key_env and api_key_file, had both".into()),
        (None, None) => Ok(None),
        (Some(variable), None) => match around.var(variable) {
            None => Ok(None),
            Some(value) => match value.to_str() {
                Some(text) => Ok(Some(Key::new(text.trim().to_owned()))),
                None => Err(format!("api_key_env: {variable} is not valid UTF-8")),
            },
        },
        (None, Some(file)) => {
            let path = directory.join(file);
            let text = keys::read_private(&path, keys::Readers::OwnGroup)
                .map_err(|e| format!("api_key_file: {e}"))?;
            let text = text.ok_or_else(|| format!("api_key_file: {} is not there", path.display()))?;
            match text.trim() {
                "" => Err(format!("api_key_file: {} is empty", path.display())),
                key if key.contains(char::is_whitespace) => {
                    Err(format!("api_key_file: {} holds more than a key", path.display()))
                }
                key => Ok(Some(Key::new(key.to_owned()))),
            }
        }
    }
}

fn prices(path: &Path) -> Result<(PriceTable, Arc<str>), String> {
    let bad = |why: String| format!("prices: {}: {why}", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let table = PriceTable::with_overrides(&text).map_err(|e| bad(e.to_string()))?;
    let hash = Arc::from(table.hash());
    Ok((table, hash))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn load_text(text: &str, variables: &[(&str, &str)]) -> Result<Vec<Upstream>, Error> {
        let home = tempfile::tempdir().unwrap();
        let own = home.path().join(".config/outlast");
        fs::create_dir_all(&own).unwrap();
        fs::write(own.join("outlast.toml"), text).unwrap();
        for (name, mode) in [("key", 0o600), ("open", 0o644)] {
            fs::write(own.join(name), "sk-file\n").unwrap();
            fs::set_permissions(own.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        let price = r#"{"m": {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}}"#;
        fs::write(own.join("prices.json"), price).unwrap();
        let mut all = vec![("HOME", home.path().to_str().unwrap())];
        all.extend(variables);
        load(&Surroundings::new(&all, home.path()))
    }

    #[test]
    fn an_upstream_is_read_with_all_it_can_have() {
        let text = r#"
            [upstreams.groq]
            base_url = "https://api.groq.com/openai/v1/"
            api_key_env = "GROQ_API_KEY"
            models = {fast = "groq/llama-3.1-8b-instant"}
            models_match = ["llama-*", "fast"]

            [upstreams.azure]
            base_url = "https://res.openai.azure.com/openai/v1"
            api_key_file = "key"
            auth_header = "api-key"
            prices = "prices.json"
            stream_usage = "never"
            cost_field = "usage.cost"
            rpm = 60

            [upstreams.local]
            base_url = "http://127.0.0.1:11434/v1"
        "#;
        let all = load_text(text, &[("GROQ_API_KEY", "gsk")]).unwrap_or_else(|e| panic!("{e}"));
        let find = |name: &str| all.iter().find(|u| &*u.named.name == name).unwrap();
        let groq = &find("groq").named;
        assert_eq!(groq.provider.base, "https://api.groq.com/openai/v1");
        assert_eq!(groq.provider.key.as_ref().map(Key::expose), Some("gsk"));
        assert_eq!(groq.models_match.iter().map(Pattern::to_string).collect::<Vec<_>>(), ["llama-*", "fast"]);
        assert_eq!(groq.models["fast"], "groq/llama-3.1-8b-instant");
        assert_eq!(find("groq").key_variable.as_deref(), Some("GROQ_API_KEY"));
        let azure = &find("azure").named;
        assert_eq!(azure.auth, AuthHeader::Header("api-key".parse().unwrap()));
        assert_eq!(azure.provider.key.as_ref().map(Key::expose), Some("sk-file"));
        assert!(!azure.asks_usage && azure.cost_field.is_some() && azure.prices.is_some());
        assert_eq!(azure.rate, Some(Rate { requests: Some(60), tokens: None }));
        let local = &find("local").named;
        assert!(local.wants_key.is_none() && local.provider.key.is_none() && local.asks_usage);
    }

    #[test]
    fn what_cannot_be_is_told_with_its_place() {
        let with = |more: &str| format!("[upstreams.x]\nbase_url = \"http://h/v1\"\n{more}");
        for (text, wanted) in [
            ("[upstreams.x]\n".into(), "missing field `base_url`"),
            ("[upstreams.openai]\nbase_url = \"http://h\"".into(), "not a name of an upstream"),
            ("[upstreams.x]\nbase_url = \"http://me:pw@h/v1\"".into(), "base_url: "),
            (with("api_kee = 1"), "unknown field `api_kee`"),
            (with("api_key = \"sk-s3cret\""), "unknown field `api_key`"),
            (with("api_key_env = \"A\"\napi_key_file = \"key\""), "wanted one of"),
            (with("api_key_file = \"open\""), "its mode is 0644, wanted 0600"),
            (with("api_key_file = \"gone\""), "is not there"),
            (with("stream_usage = \"always\""), "unknown variant `always`"),
            (with("rpm = 0"), "nonzero"),
            (with("tpm = \"many\""), "invalid type"),
            (with("cost_field = \"a..b\""), "cost_field: not a field"),
            (with("prices = \"gone.json\""), "prices: "),
            (with("auth_header = \"a b\""), "auth_header: "),
            (with("models_match = [\"llama-?\"]"), "models_match: not a pattern of models: \"llama-?\""),
            (
                with(
                    "models_match = [\"a\"]\n[upstreams.y]\nbase_url = \"http://h\"\nmodels_match = [\"a\"]",
                ),
                "is upstreams.x's already",
            ),
        ] {
            let error = load_text(&text, &[]).err().unwrap_or_else(|| panic!("{text}")).to_string();
            assert!(error.contains(wanted) && error.contains("`upstreams."), "{text}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        assert!(load_text("upstreams = 7", &[]).is_err());
    }

    #[test]
    fn a_variable_that_is_not_set_is_named_when_it_is_wanted() {
        let text = "[upstreams.groq]\nbase_url = \"http://h/v1\"\napi_key_env = \"GROQ_API_KEY\"";
        let all = load_text(text, &[]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(all[0].named.wants_key.as_deref(), Some("the variable GROQ_API_KEY"));
        assert!(all[0].named.provider.key.is_none());
    }
}
