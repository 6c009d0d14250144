//! Programs: the requests of an agent and the tasks of a worker, as a seed draws them. Each life repeats them.

use std::sync::Arc;

use outlast_core::price::Bound;

use crate::Rng;

/// Progress of an agent or a worker with its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Working,
    Done,
    GaveUp,
}

/// One request of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Number of the prompt, one of a few. Equal numbers make identical requests.
    pub prompt: u64,
    /// Number of the item whose scope the request is in, 0 for the iteration's scope.
    pub item: u64,
    pub stream: bool,
    pub priced: bool,
}

impl Ask {
    /// Returns the bound of the request: one nano-dollar per input token, two per output token.
    pub fn bound(&self) -> Bound {
        let (input, cap) = (20 + 10 * self.prompt, 100 + 60 * self.prompt);
        Bound {
            input_tokens: input,
            input_pico: if self.priced { 1000 * i128::from(input) } else { 0 },
            output_pico_per_token: if self.priced { 2000 } else { 0 },
            fixed_pico: 0,
            choices: 1,
            cap,
            floor_cap: 40,
        }
    }

    /// Returns the usual cap of the run's answers, for the requests that name no cap: those of every second prompt.
    pub fn usual_cap(&self) -> Option<u64> {
        (self.prompt % 2 == 1).then_some(60)
    }

    pub fn scope(&self, iteration: i64) -> Arc<str> {
        match self.item {
            0 => outlast_core::journal::iteration_scope(iteration),
            item => format!("i{iteration}/item {item}").into(),
        }
    }
}

/// Steps of requests. The requests of a step are sent together; the next step follows when all are answered.
pub type Program = Vec<Vec<Ask>>;

/// Draws the program of an agent.
pub fn requests(rng: &Rng) -> Program {
    (0..rng.between(2, 6)).map(|_| step(rng)).collect()
}

/// Draws a step: one request, the same one several times, or a few different ones.
fn step(rng: &Rng) -> Vec<Ask> {
    let ask = || Ask {
        prompt: rng.below(3),
        item: if rng.chance(60) { 0 } else { rng.between(1, 2) },
        stream: rng.chance(50),
        priced: !rng.chance(1),
    };
    let one = ask();
    match rng.below(10) {
        0..=1 => vec![one; rng.between(2, 5) as usize],
        2 => (0..3).map(|_| ask()).collect(),
        _ => vec![one],
    }
}

/// Waves of tasks. The tasks of a wave run together; the next wave follows when all are over.
pub type Waves = Vec<Vec<Task>>;

/// Draws the program of a worker: mostly steps, in waves of up to four.
pub fn tasks(rng: &Rng) -> Waves {
    let task = |wave: u64, n: u64| {
        let key = format!("k{wave}.{n}");
        match rng.below(10) {
            0..=4 => {
                let (at_most_once, retries) = (rng.chance(25), rng.chance(25));
                let (retries, long) = (retries && !at_most_once, false);
                Task::Step { key, at_most_once, retries, writes: rng.chance(30), long }
            }
            5..=6 => Task::Item { key },
            7..=8 => Task::Swap { key: format!("s{}", rng.below(2)) },
            _ => Task::Approval { key },
        }
    };
    (0..rng.between(2, 6)).map(|wave| (0..rng.between(1, 4)).map(|n| task(wave, n)).collect()).collect()
}

/// Task of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    Step {
        key: String,
        at_most_once: bool,
        retries: bool,
        writes: bool,
        /// Whether the result is stored in two parts.
        long: bool,
    },
    Item {
        key: String,
    },
    /// Adds one version to a key that all workers share, if it is still as it was read.
    Swap {
        key: String,
    },
    Approval {
        key: String,
    },
    Tool(ToolCall),
}

impl Task {
    pub fn is_item(&self) -> bool {
        matches!(self, Task::Item { .. })
    }

    pub fn is_tool(&self) -> bool {
        matches!(self, Task::Tool(_))
    }

    pub fn key(&self) -> &str {
        match self {
            Task::Tool(call) => &call.arguments,
            Task::Step { key, .. } | Task::Item { key } | Task::Swap { key } | Task::Approval { key } => key,
        }
    }
}

/// Draws a program of steps with long results.
pub fn long_results(rng: &Rng) -> Waves {
    let step = |wave: u64, n: u64| {
        let (key, at_most_once) = (format!("l{wave}.{n}"), rng.chance(25));
        Task::Step { key, at_most_once, retries: false, writes: rng.chance(30), long: true }
    };
    (0..rng.between(2, 5)).map(|wave| (0..rng.between(1, 3)).map(|n| step(wave, n)).collect()).collect()
}

/// Tool call of a worker's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Tool and arguments. Calls that have the same are equal.
    pub arguments: String,
    /// Id by which the client names the call in each life; `None` from a client that names none.
    pub id: Option<String>,
    /// Whether a second call has no further effect.
    pub repeatable: bool,
    /// Whether the call is marked as sent in the commit that opens it.
    pub leaves: bool,
}

/// Draws a program of tool calls.
pub fn tool_calls(rng: &Rng) -> Waves {
    let call = |wave: u64, n: u64| {
        let repeatable = rng.chance(30);
        let kind = if repeatable { "reads" } else { "acts" };
        let (arguments, id) = match rng.chance(50) {
            true => (format!("{kind}.{wave}.{n}"), Some(format!("call-{wave}.{n}"))),
            false => (format!("{kind}.{}", rng.below(2)), None),
        };
        Task::Tool(ToolCall { arguments, id, repeatable, leaves: rng.chance(60) })
    };
    (0..rng.between(2, 5)).map(|wave| (0..rng.between(1, 3)).map(|n| call(wave, n)).collect()).collect()
}
