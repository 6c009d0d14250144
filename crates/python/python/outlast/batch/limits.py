"""The errors by which limits stop a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import BudgetExceeded, Error, NothingMetered, RunHalted, of
from .options import METERED_AFTER

if TYPE_CHECKING:
    from .jobrun import JobRun


def refusal(run: "JobRun", error: BaseException | None, refused: str | None) -> BaseException:
    """The error that stops the batch where a limit refused something. `refused`: the code of a call's refusal."""
    found = barred(run)
    if found is not None:
        return found
    if isinstance(error, Error):
        return error
    code = refused or "budget_exceeded"
    cls = BudgetExceeded if "budget" in code else RunHalted
    hint = f"raise it with `outlast budget {run.id} --add-usd 1`, then start the program again"
    return cls(f"job {run.id}: a call was refused with {code}", hint=hint, code=code)


def barred(run: "JobRun") -> Error | None:
    """The limit or rule that keeps the job from starting more items, as an error; None if there is none."""
    found = run._engine.barred(run._no)
    if found is None:
        return None
    status, code, message, hint = found
    text = f"job {run.id} {'is halted' if status == 'halted' else 'waits for room'}: {message}"
    return of(code, text, hint) if "budget" in code else RunHalted(text, hint=hint, code=code)


def unmetered(run: "JobRun") -> NothingMetered | None:
    """The error for a batch whose calls do not come through Outlast, once items are finished under a limit."""
    spent = run.view().raw["spent"]
    assert isinstance(spent, dict)
    if spent["calls"] or spent["cost_nano_usd"]:
        return None
    return NothingMetered(
        f"{METERED_AFTER} items of job {run.id} are finished and nothing was metered: its budget limits nothing",
        hint="make clients with outlast.openai(), .anthropic(), .gemini() or .endpoint(); or give no limit of usd or tokens",
    )
