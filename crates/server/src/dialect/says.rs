//! Times in an upstream's headers: how long to wait, and until when.

use http::HeaderMap;
use outlast_core::words::id::Micros;

use super::told_time::{Reader, no_zones};

/// Headers of an upstream's answer, and the time at which they arrived: the source of its rate limits and
/// waits.
#[derive(Clone, Copy)]
pub struct Says<'h> {
    pub headers: &'h HeaderMap,
    /// Time at which the headers arrived, from which relative times count.
    pub now: Micros,
}

impl Says<'_> {
    pub fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok().map(str::trim)
    }

    /// Returns the time in the header `name`: a moment, or a span from now. A plain number is seconds. `None` without a
    /// readable one.
    pub fn time(&self, name: &str) -> Option<Micros> {
        self.reader().read(self.text(name)?)
    }

    /// Returns the time until which the upstream asks to wait: `retry-after` and its relatives; `None` without a readable
    /// one.
    pub fn retry_after(&self) -> Option<Micros> {
        let ms = |name: &&str| self.reader().number(self.text(name)?, 1.0);
        let in_ms = ["retry-after-ms", "x-ms-retry-after-ms"].iter().find_map(ms);
        in_ms.or_else(|| ["retry-after", "x-retry-after"].iter().find_map(|name| self.time(name)))
    }

    pub fn reader(&self) -> Reader<'static> {
        Reader { now: self.now, zones: &no_zones }
    }
}
