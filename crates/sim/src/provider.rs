//! Simulated provider: it answers, refuses, breaks off, loses answers after billing them, and keeps the one true bill.

use std::{collections::BTreeMap, sync::Arc};

use outlast_core::{
    call::exchange::{Failure, Silence},
    envelope::Amounts,
    price::Bound,
    words::{ServiceTier, Usage, money::nano_from_pico},
};

use crate::prelude::*;

/// Request as it arrives upstream.
#[derive(Clone, Debug, Default)]
pub struct UpstreamRequest {
    pub run: RunNo,
    pub seq: Seq,
    pub digest: Digest,
    pub scope: Arc<str>,
    pub stream: bool,
    pub bound: Bound,
    /// Output cap with which the request was sent, in tokens.
    pub cap: u64,
    pub priced: bool,
}

/// Billed amounts of a request, and the answer made for it.
#[derive(Clone, Debug)]
pub struct Served {
    pub asked: UpstreamRequest,
    /// Unique number of the answer, which tells one paid answer from another.
    pub answer: u64,
    /// Cost and tokens that the provider billed.
    pub billed: Amounts,
    /// Part of `billed` that an equal request would not have cost.
    pub beyond: Amounts,
}

/// Time between two pings of an upstream that is wedged, in milliseconds.
pub const PING_MS: u64 = 10_000;

/// Part of an answer. Parts come in order, each after a number of milliseconds.
#[derive(Clone, Debug)]
pub enum Piece {
    Head {
        status: u16,
        streamed: bool,
    },
    Frame(Frame),
    /// Body of an answer that is not a stream.
    Body {
        readable: bool,
    },
    End,
    Failed(Failure),
    Silent(Silence),
    /// A ping of an upstream that is wedged: this is all that comes from now on.
    Wedged,
    /// Usage as the dialect reads it, with its price.
    Usage(Bill),
}

/// The provider, with all requests it ever received.
#[derive(Default)]
pub struct Provider {
    pub served: BTreeMap<(RunNo, Seq), Served>,
    /// Whether faults have ended, because the world is coming to rest.
    pub behaves: bool,
    answers: u64,
    /// Times at which each life of each process first asked for a call, by (process, life).
    asked_at: BTreeMap<(usize, u64), Vec<u64>>,
}

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answer,
    NoUsage,
    Overrun,
    Unreadable,
    Status(u16),
    /// No answer comes back, not even a status.
    Lost {
        billed: bool,
        silent: bool,
    },
    /// The answer breaks off before its end; with `after_stop`, only after its stop reason was sent.
    Cut {
        after_stop: bool,
        silent: bool,
    },
    OwnError,
}

impl Provider {
    /// Returns the pieces of an unreachable upstream.
    pub fn unreachable() -> Vec<(u64, Piece)> {
        vec![(20, Piece::Failed(Failure::BeforeSend))]
    }

    /// Counts a new call by `who`. Returns true if that exceeds `rate` within a minute.
    pub fn counts(&mut self, who: (usize, u64), now_ms: u64, rate: Rate) -> bool {
        let asked = self.asked_at.entry(who).or_default();
        asked.retain(|at| at + 60_000 > now_ms);
        asked.push(now_ms);
        rate.requests.is_some_and(|limit| asked.len() as u64 > limit)
    }

    /// Takes a request, bills it, and returns the pieces that will come back. Called once per (run, seq).
    pub fn receive(&mut self, asked: UpstreamRequest, rng: &Rng) -> Vec<(u64, Piece)> {
        let fate = if self.behaves { Fate::Answer } else { draw(rng) };
        self.answers += 1;
        let usage = usage(&asked, fate, rng);
        let usual = self::usage(&asked, Fate::Answer, rng);
        let [amounts, usual] = [&usage, &usual].map(|u| Amounts::of_call(cost(&asked.bound, u), u.total()));
        let is_billed = !matches!(fate, Fate::Status(_) | Fate::Lost { billed: false, .. });
        let billed = |amounts| if is_billed { amounts } else { Amounts::default() };
        let bill = Bill::Usage {
            usage,
            tier: ServiceTier::Standard,
            cost_nano_usd: amounts.cost(),
            price_hash: "sim".to_owned(),
        };
        let pieces = play(fate, asked.stream, bill, rng);
        let served =
            Served { answer: self.answers, billed: billed(amounts), beyond: billed(amounts - usual), asked };
        self.served.insert((served.asked.run, served.asked.seq), served);
        pieces
    }
}

fn draw(rng: &Rng) -> Fate {
    match rng.below(100) {
        0..=6 => Fate::Status(429),
        7..=9 => Fate::Status(500),
        10..=17 => Fate::Lost { billed: rng.chance(60), silent: rng.chance(30) },
        18..=23 => Fate::Cut { after_stop: rng.chance(50), silent: rng.chance(30) },
        24..=25 => Fate::Unreadable,
        26..=28 => Fate::NoUsage,
        29 => Fate::Overrun,
        30..=31 => Fate::OwnError,
        _ => Fate::Answer,
    }
}

/// Returns a usage within the bound, unless the fate is an overrun. Equal requests have equal usages, cut off at their
/// caps: so the bill of a retry tells what a lost call may have cost.
fn usage(asked: &UpstreamRequest, fate: Fate, rng: &Rng) -> Usage {
    let whole = 1 + u64::from(asked.digest.0[0]) * asked.bound.cap / 256;
    let output = match fate {
        Fate::Overrun => asked.cap + rng.between(1, 50),
        _ => whole.min(asked.cap),
    };
    let input = 1 + u64::from(asked.digest.0[1]) * asked.bound.input_tokens.saturating_sub(1) / 256;
    Usage { input, output, ..Usage::default() }
}

fn cost(bound: &Bound, usage: &Usage) -> i64 {
    let input = bound.input_pico * i128::from(usage.input) / i128::from(bound.input_tokens.max(1));
    nano_from_pico(input + i128::from(bound.output_pico_per_token) * i128::from(usage.output)).0
}

fn play(fate: Fate, stream: bool, bill: Bill, rng: &Rng) -> Vec<(u64, Piece)> {
    let wait = || rng.either(10, (5_000, 40_000), (20, 3_000));
    let silence = |s| (60_000, Piece::Silent(s));
    let broken =
        |silent: bool, s| if silent { silence(s) } else { (wait(), Piece::Failed(Failure::AfterSend)) };
    let mut pieces = Vec::new();
    match fate {
        Fate::Lost { silent, .. } => return vec![broken(silent, Silence::FirstByte)],
        Fate::Status(status) => {
            pieces.push((wait(), Piece::Head { status, streamed: false }));
            pieces.push((1, Piece::Body { readable: true }));
            return pieces;
        }
        _ => pieces.push((wait(), Piece::Head { status: 200, streamed: stream })),
    }
    if stream {
        for _ in 0..rng.between(0, 3) {
            pieces.push((wait() / 4, Piece::Frame(if rng.chance(20) { Frame::Ping } else { Frame::Data })));
        }
    }
    match fate {
        Fate::Cut { after_stop, silent } => {
            if stream && after_stop {
                pieces.push((5, Piece::Frame(Frame::Stop)));
            }
            if stream && !silent && rng.chance(50) {
                pieces.push((5, Piece::End));
            } else if stream && silent {
                pieces.push((PING_MS, Piece::Wedged));
            } else {
                pieces.push(broken(silent, Silence::Idle));
            }
        }
        Fate::OwnError if stream => pieces.push((5, Piece::Frame(Frame::Error))),
        _ if stream => {
            pieces.push((5, Piece::Frame(Frame::Stop)));
            if fate != Fate::NoUsage {
                pieces.push((1, Piece::Usage(bill)));
            }
            pieces.push((5, Piece::Frame(Frame::Swallowed)));
            pieces.push((rng.between(1, 500), Piece::Frame(Frame::Terminal)));
            pieces.push((1, Piece::End));
        }
        _ => {
            if !matches!(fate, Fate::NoUsage | Fate::Unreadable | Fate::OwnError) {
                pieces.push((1, Piece::Usage(bill)));
            }
            pieces.push((wait() / 4, Piece::Body { readable: fate != Fate::Unreadable }));
        }
    }
    pieces
}
