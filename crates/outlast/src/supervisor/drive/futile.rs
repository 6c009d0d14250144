//! Ends that every further attempt would repeat. The run is failed at once then, with the reason.

use outlast_core::{
    journal::{Entry, Kind, State},
    reads::entries,
    run::attempt::Attempt,
    words::id::AttemptNo,
};

use super::{Driver, Life, judge::gave_up};
use crate::{
    agent::truth,
    logs::read,
    program::error::CliError,
    render::{did::Did, short::called},
    supervisor::{attempt::Outcome, typo},
};

/// Exit code with which programs tell no more than that they failed.
const FAILED: i32 = 1;

impl Driver {
    /// Returns why another attempt would end as this one did; `None` if it may get further. `attempts` are all of the
    /// run's, this one too.
    pub(super) fn futile(
        &self,
        life: &Life,
        outcome: &Outcome,
        attempts: &[Attempt],
    ) -> Result<Option<String>, CliError> {
        if !gave_up(outcome) {
            return Ok(None);
        }
        if let Some(refused) = &outcome.for_good {
            let id = called(&self.view);
            let hint = match (refused.code.as_str(), &refused.hint) {
                (outlast_server::door::TOO_LARGE, _) => {
                    format!("; hint: `outlast resume {id} --max-body 256MiB` takes larger ones")
                }
                (_, Some(hint)) => format!("; hint: {hint}"),
                (_, None) => String::new(),
            };
            return Ok(Some(format!("{}{hint}", refused.message)));
        }
        let failed_before = |a: &&Attempt| {
            a.no.0 + 1 == life.attempt.0
                && a.died()
                && a.exit.as_ref().is_some_and(|e| e.code == Some(FAILED))
        };
        let before = attempts.iter().find(failed_before).filter(|_| outcome.exit.code == Some(FAILED));
        if let Some(before) = before
            && let Some(words) = self.refused_key(before.no)?.and(self.refused_key(life.attempt)?)
        {
            return Ok(Some(format!("its provider refused its key twice: {words}")));
        }
        let did = Did::of(&truth::newest_entries(self.store.as_ref(), self.view.run.no)?, None);
        if self.asked > 0 || did != Did::default() || self.got_on(life.attempt)? {
            return Ok(None);
        }
        let Some(printed) = self.printed(life.attempt) else { return Ok(None) };
        if life.attempt == AttemptNo(1) {
            return Ok(typo::mistake(&printed).map(|line| format!("the program cannot be loaded: {line}")));
        }
        let is_same = before.is_some_and(|before| self.printed(before.no).as_ref() == Some(&printed));
        Ok(is_same.then(|| {
            let last = printed.iter().rfind(|line| !line.trim().is_empty());
            let last = last.map_or_else(String::new, |line| format!(": {}", line.trim()));
            format!("the agent ended twice in the same way, with exit {FAILED} and without a call{last}")
        }))
    }

    /// Returns the provider's words, if it refused the key of each call of the attempt; `None` if it did not, or was not
    /// called.
    fn refused_key(&self, attempt: AttemptNo) -> Result<Option<String>, CliError> {
        let run = super::story::view(self.store.as_ref(), &self.view)?.run;
        let mut words = None;
        for entry in entries::each_back(self.store.as_ref(), run.no, run.next_seq) {
            let entry = entry?;
            if entry.attempt < attempt {
                break;
            }
            if entry.kind == Kind::Call && entry.attempt == attempt {
                let Some(refusal) = refusal(&entry) else { return Ok(None) };
                words.get_or_insert(refusal);
            }
        }
        Ok(words)
    }

    /// Returns the last lines that the attempt printed; `None` if there is no log of it.
    fn printed(&self, attempt: AttemptNo) -> Option<Vec<String>> {
        let own = self.directory.as_ref().filter(|_| !self.command.supervision.no_logs)?;
        read::last_lines(&own.logs(), attempt, typo::LINES).ok()
    }
}

/// Returns status and words with which a provider refused the key of a call; `None` if the call had another end.
fn refusal(entry: &Entry) -> Option<String> {
    let call = entry.call.as_ref().filter(|_| entry.state == State::Failed)?;
    let status = call.http_status.filter(|status| matches!(status, 401 | 403))?;
    Some(match call.error.as_deref().map(str::trim) {
        Some(words) if !words.is_empty() => format!("{status}, {words}"),
        _ => status.to_string(),
    })
}
