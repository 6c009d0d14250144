//! Truth about a plan: how far its windows are used, by the runs and by another device, and whether a ceiling was passed.

use outlast_core::{
    call::plan::WindowUse,
    envelope::{Ceilings, Length, Reached, Share},
    words::Micros,
};

use crate::Rng;

const FIVE_HOURS: Length = Length(300);

/// Most by which a window may be passed, beyond what another device took.
const MOST: i64 = Share::POINT.0;

/// Windows that the head of an answer tells, with what they are worth to who checks.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub told: Vec<WindowUse>,
    known: Vec<Known>,
}

/// Amount that another device had taken of a window when a head told its use.
#[derive(Clone, Copy, Debug)]
struct Known {
    turn: u64,
    others: i64,
}

/// The plan, as its provider counts it.
pub struct Truth {
    windows: Vec<Window>,
    /// Step in which the provider tells shares.
    step: Share,
    /// Share of the short window that a call takes on average, in millionths.
    each: i64,
    /// Whether the provider tells nobody how far the windows are used.
    pub is_silent: bool,
}

struct Window {
    length: Length,
    ceiling: Option<Share>,
    turns_at: Micros,
    /// Number of times that the window has turned.
    turn: u64,
    used: i64,
    /// Use with which the window was met first.
    start: i64,
    /// Part of `used` that another device took.
    others: i64,
    /// Part of `others` that the store knows of.
    others_known: i64,
    /// Part of `others` that was known when the last call was let go.
    others_at_go: i64,
}

impl Window {
    fn new(length: Length, rng: &Rng, now: Micros) -> Window {
        let start = Share::POINT.0 * rng.between(0, 50) as i64 + rng.between(0, 9_999) as i64;
        let ceiling = start / Share::POINT.0 + rng.between(0, 12) as i64;
        Window {
            length,
            ceiling: rng.chance(90).then_some(Share(Share::POINT.0 * ceiling.max(4))),
            turns_at: Micros(now.0 + length.us() / 1_000 * rng.between(1, 999) as i64),
            turn: 0,
            used: start,
            start,
            others: 0,
            others_known: 0,
            others_at_go: 0,
        }
    }

    fn turn(&mut self) {
        self.turns_at = Micros(self.turns_at.0 + self.length.us());
        self.turn += 1;
        (self.used, self.start) = (0, 0);
        (self.others, self.others_known, self.others_at_go) = (0, 0, 0);
    }

    /// Returns the share of this window that stands for a share of the short one.
    fn part(&self, share: i64) -> i64 {
        if self.length == FIVE_HOURS { share } else { share / 10 }
    }
}

impl Truth {
    pub fn new(rng: &Rng, now: Micros) -> Truth {
        let lengths = if rng.chance(50) { &[FIVE_HOURS, Length::WEEK][..] } else { &[FIVE_HOURS] };
        let mut windows: Vec<Window> = lengths.iter().map(|length| Window::new(*length, rng, now)).collect();
        // Something has to be limited.
        if let Some(first) = windows.first_mut() {
            first.ceiling = first.ceiling.or(Some(Share(40 * Share::POINT.0)));
        }
        let step = if rng.chance(50) { Share::POINT } else { Share(100) };
        Truth { windows, step, each: rng.between(500, 1_500) as i64, is_silent: rng.chance(10) }
    }

    pub fn ceilings(&self) -> Ceilings {
        let limited = self.windows.iter().filter_map(|w| w.ceiling.map(|c| (w.length, c)));
        let each: Vec<String> = limited.map(|(l, c)| format!("{l}={}%", c.percent())).collect();
        each.join(",").parse().unwrap_or_default()
    }

    /// Turns the windows whose time has come. Returns how many did.
    pub fn pass(&mut self, now: Micros) -> usize {
        let mut turned = 0;
        for window in &mut self.windows {
            while window.turns_at <= now {
                window.turn();
                turned += 1;
            }
        }
        turned
    }

    /// Tells the windows in the head of an answer.
    pub fn head(&self) -> Head {
        let step = self.step.0;
        let tell = |w: &Window| WindowUse {
            window: w.length,
            used: Share(w.used / step * step),
            resets_at: Some(w.turns_at),
        };
        Head {
            told: if self.is_silent { Vec::new() } else { self.windows.iter().map(tell).collect() },
            known: self.windows.iter().map(|w| Known { turn: w.turn, others: w.others }).collect(),
        }
    }

    /// Notes that the store knows what a head has told.
    pub fn learnt(&mut self, head: &Head) {
        for (window, known) in self.windows.iter_mut().zip(&head.known) {
            if window.turn == known.turn {
                window.others_known = window.others_known.max(known.others);
            }
        }
    }

    /// Notes that the store has lost what was told since a call was let go: a call's opening is synced, and that is not.
    pub fn forgotten(&mut self) {
        self.windows.iter_mut().for_each(|w| w.others_known = w.others_at_go);
    }

    /// Notes that a call was let go.
    pub fn went(&mut self) {
        self.windows.iter_mut().for_each(|w| w.others_at_go = w.others_known);
    }

    /// Another device uses the plan.
    pub fn others_take(&mut self, points_in_thousand: i64) {
        for window in &mut self.windows {
            let share = window.part(points_in_thousand * Share::POINT.0 / 1_000);
            window.used += share;
            window.others += share;
        }
    }

    /// Bills a call: `part` thousandths of what calls take on average. Returns the ceiling that it passes.
    pub fn bill(&mut self, part: i64) -> Option<String> {
        let mut passed = None;
        for window in &mut self.windows {
            window.used += window.part(self.each * part / 1_000);
            let Some(ceiling) = window.ceiling else { continue };
            let ours = Share(window.used - (window.others - window.others_at_go));
            let most = Share(ceiling.0.max(window.start) + MOST);
            if ours > most {
                let length = window.length;
                passed = Some(format!("P1: the window {length} is used to {ours}, its ceiling is {ceiling}"));
            }
        }
        passed
    }

    /// Returns what is wrong with a rest: one that began while there was room, or that outlasts its window.
    pub fn rests(&self, reached: &Reached) -> Option<String> {
        let window = self.windows.iter().find(|w| w.length.is(reached.window))?;
        let lacking = Share(window.used + 2 * MOST);
        if window.turns_at < reached.until {
            return Some(format!("P2: a run rests until {}, and its window turns before", reached.until.0));
        }
        // The use may have turned since it was told.
        let is_of_now = window.turns_at == reached.until;
        (is_of_now && lacking < reached.ceiling).then(|| {
            format!("P2: a run rests at {}, and the ceiling is {}", Share(window.used), reached.ceiling)
        })
    }
}
