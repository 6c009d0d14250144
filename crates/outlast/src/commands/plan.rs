//! Plans of logins, as `show` and `spend` tell them: how far each window is used, when it turns, and at what pace.

use outlast_core::{
    call::plan::{Plan, Window, short_login},
    envelope::{Ceilings, Share},
    reads::plans,
};

use super::prelude::*;

/// Plan of a login, and the ceilings with which the plan is shown.
#[derive(Clone, Debug)]
pub struct Shown {
    login: String,
    plan: Plan,
    ceilings: Ceilings,
    now: Micros,
}

impl Shown {
    /// Returns the plans of the logins under which a run made calls.
    pub fn of_run(store: &dyn Store, view: &RunView, now: Micros) -> Result<Vec<Shown>> {
        let (ceilings, plans) = plans::of_run(store, view)?;
        let shown = |(login, plan)| Shown { login, plan, ceilings: ceilings.clone(), now };
        Ok(plans.into_iter().map(shown).collect())
    }

    /// Returns the plans of all logins.
    pub fn all(store: &dyn Store, now: Micros) -> Result<Vec<Shown>> {
        let shown = |(login, plan)| Shown { login, plan, ceilings: Ceilings::default(), now };
        Ok(plans::list(store)?.into_iter().map(shown).collect())
    }

    /// Returns the lines about each window that has not reset since it was reported: its use, and its pace if
    /// it will be used up before it resets.
    pub fn lines(&self) -> Vec<String> {
        let windows = self.plan.windows.iter().filter(|w| !w.is_over(self.now));
        windows.flat_map(|w| [Some(self.line(w)), self.pace(w)]).flatten().collect()
    }

    fn line(&self, window: &Window) -> String {
        let of = self.ceilings.on(window.length).map_or_else(String::new, |ceiling| format!(" of {ceiling}"));
        let turns =
            window.resets_at.map_or_else(String::new, |at| format!(", turns {}", time::day_and_clock(at)));
        format!("plan      {}: {} used{of}{turns}", window.length, window.used)
    }

    fn pace(&self, window: &Window) -> Option<String> {
        let (share, whose) = match self.ceilings.on(window.length) {
            Some(ceiling) if window.used >= ceiling => return None,
            Some(ceiling) => (ceiling, format!("the {}'s share", window.length)),
            None => (Share::WHOLE, format!("the whole {}", window.length)),
        };
        let at = window.used_up_at(share)?;
        if at <= self.now {
            return Some(format!("pace      at the pace so far {whose} is used up by now"));
        }
        Some(format!("pace      at this pace {whose} is used up on {}", time::day_and_clock(at)))
    }

    /// Returns the provider and the first characters of the account's name.
    pub fn login(&self) -> String {
        let (provider, account) = short_login(&self.login);
        format!("{provider} {account}")
    }

    pub fn view(&self) -> view::Plan {
        view::Plan::new(&self.login, &self.plan, &self.ceilings, self.now)
    }
}
