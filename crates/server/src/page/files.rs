//! Files of the page, part of the binary: nothing is fetched from elsewhere, and nothing is read from the disk.

/// A file of the page.
pub struct File {
    pub path: &'static str,
    pub kind: &'static str,
    pub bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

macro_rules! files {
    ($($path:literal $kind:ident $file:literal,)*) => {
        &[$(File { path: $path, kind: $kind, bytes: include_bytes!(concat!("../../web/", $file)) },)*]
    };
}

/// All files of the page, by the path under which each is served. A request's path must be equal to one.
pub const FILES: &[File] = files! {
    "/" HTML "index.html",
    "/ui/icon.svg" IMAGE "icon.svg",
    "/ui/style.css" STYLE "style.css",
    "/ui/acts.js" SCRIPT "acts.js",
    "/ui/api.js" SCRIPT "api.js",
    "/ui/app.js" SCRIPT "app.js",
    "/ui/approvals.js" SCRIPT "approvals.js",
    "/ui/budgets.js" SCRIPT "budgets.js",
    "/ui/call.js" SCRIPT "call.js",
    "/ui/diff.js" SCRIPT "diff.js",
    "/ui/events.js" SCRIPT "events.js",
    "/ui/html.js" SCRIPT "html.js",
    "/ui/jobs.js" SCRIPT "jobs.js",
    "/ui/journal.js" SCRIPT "journal.js",
    "/ui/lanes.js" SCRIPT "lanes.js",
    "/ui/live.js" SCRIPT "live.js",
    "/ui/parts.js" SCRIPT "parts.js",
    "/ui/run.js" SCRIPT "run.js",
    "/ui/runs.js" SCRIPT "runs.js",
    "/ui/spend.js" SCRIPT "spend.js",
    "/ui/state.js" SCRIPT "state.js",
    "/ui/timeline.js" SCRIPT "timeline.js",
    "/ui/words.js" SCRIPT "words.js",
    "/ui/vendor/uPlot.min.css" STYLE "vendor/uPlot.min.css",
    "/ui/vendor/preact.mjs" SCRIPT "vendor/preact.mjs",
    "/ui/vendor/hooks.mjs" SCRIPT "vendor/hooks.mjs",
    "/ui/vendor/htm.mjs" SCRIPT "vendor/htm.mjs",
    "/ui/vendor/uPlot.mjs" SCRIPT "vendor/uPlot.mjs",
};

/// Finds a file by the path of a request; `None` if there is none.
pub fn find(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn every_file_of_the_page_is_served() {
        let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("web");
        let files = |directory: &Path| -> Vec<String> {
            let inside = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
            inside
                .filter(|p| p.is_file())
                .map(|p| p.file_name().unwrap().to_str().unwrap().to_owned())
                .collect()
        };
        for name in files(&web) {
            let path = if name == "index.html" { "/".to_owned() } else { format!("/ui/{name}") };
            assert!(find(&path).is_some(), "{path} is in no list");
        }
        for name in files(&web.join("vendor")) {
            assert!(name.starts_with("LICENSE") || find(&format!("/ui/vendor/{name}")).is_some(), "{name}");
        }
    }

    #[test]
    fn no_script_of_ours_makes_markup_of_text() {
        for file in FILES.iter().filter(|file| !file.path.contains("/vendor/")) {
            let text = std::str::from_utf8(file.bytes).unwrap();
            let banned =
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("];
            for word in banned.into_iter().chain(["javascript:", "srcdoc", "localStorage", "document.cookie"])
            {
                assert!(!text.contains(word), "{}: {word}", file.path);
            }
            // Nothing is loaded from elsewhere.
            for (at, _) in text.match_indices("http") {
                let here = &text[at..];
                let is_name = here.starts_with("http://www.w3.org/");
                assert!(
                    !here.starts_with("http://") && !here.starts_with("https://") || is_name,
                    "{}",
                    file.path
                );
            }
        }
    }
}
