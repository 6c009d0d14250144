//! Where `tracing` goes: standard error, filtered by `OUTLAST_LOG` (`warn`, `info`, `outlast_server=debug`, …).

use tracing_subscriber::{EnvFilter, fmt};

use crate::surroundings::Surroundings;

/// Starts logging; `level` counts where `OUTLAST_LOG` says nothing.
pub fn start(around: &Surroundings, level: &str) {
    let asked = around.var("OUTLAST_LOG").and_then(|v| v.to_str()).unwrap_or(level);
    let filter = EnvFilter::try_new(asked).unwrap_or_else(|_| EnvFilter::new(level));
    let format = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A second start in one process changes nothing.
    let _ = format.try_init();
}
