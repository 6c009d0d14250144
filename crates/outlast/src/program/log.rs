//! Log of this process: `tracing` to standard error, filtered by `OUTLAST_LOG` (`warn`, `info`,
//! `outlast_server=debug`, …).
//!
//! A thread of its own writes the lines: standard error may be a pipe that nobody reads, and a server that
//! waited for its reader would stop with all its calls. If too many lines wait, later ones are dropped, and
//! their number is logged.

use std::{
    io::{self, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    thread,
    time::Duration,
};

use tracing_subscriber::{
    filter::Targets,
    fmt::{self, format::FmtSpan},
    layer::{Layer as _, SubscriberExt as _},
    util::SubscriberInitExt as _,
};

use crate::settings::surroundings::Surroundings;

/// Most lines that wait to be written.
const MOST_LINES: usize = 1024;

/// Longest wait for a person's line to be written, so that later output follows it.
const IN_ORDER: Duration = Duration::from_millis(100);

/// Starts logging to standard error. `level` is the filter if `OUTLAST_LOG` is not set. A second start has no effect.
pub fn start(around: &Surroundings, level: &str) {
    start_as(around, level, false);
}

/// Starts logging as [`start`] does; `as_json`: with one JSON object a line.
pub fn start_as(around: &Surroundings, level: &str, as_json: bool) {
    // Without a thread, each line is written where it arises.
    let Some(lines) = lines() else { return };
    let format = fmt::layer()
        .with_writer(move || Line(lines))
        .with_target(false)
        // The end of a span tells how long it worked and waited. Spans are of the level `debug`.
        .with_span_events(FmtSpan::CLOSE);
    let format = if as_json { format.json().flatten_event(true).boxed() } else { format.boxed() };
    // A second start in one process changes nothing.
    let _ = tracing_subscriber::registry().with(format).with(filter(around, level)).try_init();
}

/// Returns the filter that `OUTLAST_LOG` asks for; that of `level` if it asks for none, or for one that cannot be read.
fn filter(around: &Surroundings, level: &str) -> Targets {
    let asked = around.var("OUTLAST_LOG").and_then(|v| v.to_str()).and_then(|asked| asked.parse().ok());
    asked.or_else(|| level.parse().ok()).unwrap_or_default()
}

fn lines() -> Option<&'static Lines> {
    let started = Lines::start(io::stderr()).ok()?;
    Some(LINES.get_or_init(|| started))
}

static LINES: OnceLock<Lines> = OnceLock::new();

/// Writes a line for a person to standard error. The line is written when this returns, unless standard error
/// is not read.
pub fn line(text: &str) {
    match LINES.get() {
        Some(lines) => {
            lines.put(format!("{text}\n").into_bytes());
            lines.flush(IN_ORDER);
        }
        // Nobody can be told when standard error is closed.
        None => drop(writeln!(io::stderr(), "{text}")),
    }
}

/// Waits until logged lines are written; gives up after a moment if they are not read.
pub fn flush() {
    if let Some(lines) = LINES.get() {
        lines.flush(IN_ORDER);
    }
}

/// Queue of log lines that wait to be written.
struct Lines {
    queue: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

enum Message {
    Line(Vec<u8>),
    /// Request for an answer once all earlier lines are written.
    Mark(SyncSender<()>),
}

impl Lines {
    fn start(out: impl Write + Send + 'static) -> io::Result<Lines> {
        let (queue, waiting) = mpsc::sync_channel(MOST_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let missed = dropped.clone();
        let thread = thread::Builder::new().name("outlast-log".into()).stack_size(128 << 10);
        thread.spawn(move || write(out, &waiting, &missed))?;
        Ok(Lines { queue, dropped })
    }

    fn put(&self, line: Vec<u8>) {
        if self.queue.try_send(Message::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self, longest: Duration) {
        let (mark, reached) = mpsc::sync_channel(1);
        if self.queue.try_send(Message::Mark(mark)).is_ok() {
            let _ = reached.recv_timeout(longest);
        }
    }
}

fn write(mut out: impl Write, waiting: &Receiver<Message>, dropped: &AtomicU64) {
    for message in waiting {
        match message {
            // A reader that has gone reads no complaint about it either.
            Message::Line(line) => drop(out.write_all(&line).and_then(|()| out.flush())),
            Message::Mark(mark) => drop(mark.try_send(())),
        }
        match dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            n => drop(writeln!(
                out,
                "outlast: {n} lines of the log were dropped: they were not read fast enough"
            )),
        }
    }
}

/// Writer of one event.
struct Line(&'static Lines);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.put(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// Pipe whose reader reads only when told to.
    #[derive(Clone, Default)]
    struct Slow(Arc<Pipe>);

    #[derive(Default)]
    struct Pipe {
        /// Whether it is read, and the bytes read so far.
        state: Mutex<(bool, Vec<u8>)>,
        changed: Condvar,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let Pipe { state, changed } = &*self.0;
            let mut state = changed.wait_while(state.lock().unwrap(), |(reads, _)| !*reads).unwrap();
            state.1.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_a_reader_who_does_not_read_and_is_told_later_what_he_missed() {
        // Bug: `outlast serve` with a pipe as standard error that nobody read stood still once the pipe was full.
        // Consequence: all calls hung. Cause: each log line was written by the thread that serves them.
        let slow = Slow::default();
        let lines = Lines::start(slow.clone()).unwrap();
        for n in 0..MOST_LINES + 500 {
            lines.put(format!("{n}\n").into_bytes());
        }
        lines.flush(Duration::from_millis(1));
        slow.0.state.lock().unwrap().0 = true;
        slow.0.changed.notify_all();
        lines.flush(Duration::from_secs(60));
        let text = loop {
            let text = String::from_utf8(slow.0.state.lock().unwrap().1.clone()).unwrap();
            if text.contains(&format!("\n{}\n", MOST_LINES - 1)) {
                break text;
            }
            lines.flush(Duration::from_secs(60));
        };
        assert!(text.starts_with("0\n"), "{text}");
        // One more line may have left the queue already.
        assert!(text.contains("500 lines of the log") || text.contains("499 lines of the log"), "{text}");
    }
}
