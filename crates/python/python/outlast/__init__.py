"""Crash recovery for AI agents: steps, batches and budgets that survive `kill -9`, no server needed.

    import outlast

    rt = outlast.connect()
    with rt.run("research-42", budget=outlast.Budget(usd=5)) as run:
        plan = run.step("plan", make_plan, topic)

Names are loaded when they are first used, so that `import outlast` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# The modules with the public names that each has.
_MODULES = {
    "runtime": "connect Runtime",
    "batch.handles": "map amap Batch AsyncBatch",
    "batch.results": "Result",
    "batch.jobs": "job Job",
    "approvals": "Approval",
    "runs": "Run current",
    "views": "RunView",
    "budget": "Budget",
    "kept": "Files",
    "retry": "Retry",
    "steps.decorator": "step",
    "tools": "tool",
    "scope": "Current",
    "clients": "openai anthropic gemini endpoint Endpoint",
    "reservation": "reserve settle Reservation",
    "state.statehouse": "Statehouse Transaction",
    "versions": "StateResult ReplayEvent Operation ResumePoint",
    "errors": (
        "Compacted CompactedWarning NoServer StatehouseError ReadOnlyNamespace TransactionError Error AlreadySettled "
        "AlreadyTaken ApprovalDenied BadLimit BudgetChanged BudgetExceeded Conflict DuplicateKey ForkedHandle ItemFailed "
        "JobChanged LeaseLost NoRun NotSerializable NothingMetered RepeatedFailure RunCompleted RunEnded RunHalted RunHeld "
        "RunNotOpen Skip StepDiverged StepFailed StepInDoubt StepTimeout StopRequested StoreError ToolFailed UnknownRun "
        "UnknownSnapshot Unkeyable WouldRepay DivergenceWarning OtherShape UnrecordedWarning"
    ),
    "generators.resume": "resume_or_start Results AsyncResults",
    "generators.jsonl": "JsonlStore",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from .approvals import Approval as Approval
    from .batch.handles import AsyncBatch as AsyncBatch, Batch as Batch, amap as amap, map as map
    from .batch.jobs import Job as Job, job as job
    from .batch.results import Result as Result
    from .budget import Budget as Budget
    from .clients import Endpoint as Endpoint, anthropic as anthropic, endpoint as endpoint, gemini as gemini, openai as openai
    from .steps.decorator import step as step
    from .tools import tool as tool
    from .scope import Current as Current
    from .errors import *  # noqa: F403
    from .reservation import Reservation as Reservation, reserve as reserve, settle as settle
    from .generators.jsonl import JsonlStore as JsonlStore
    from .generators.resume import AsyncResults as AsyncResults, Results as Results, resume_or_start as resume_or_start
    from .kept import Files as Files
    from .retry import Retry as Retry
    from .runs import Run as Run, current as current
    from .runtime import Runtime as Runtime, connect as connect
    from .state.statehouse import Statehouse as Statehouse, Transaction as Transaction
    from .versions import Operation as Operation, ReplayEvent as ReplayEvent, ResumePoint as ResumePoint, StateResult as StateResult
    from .views import RunView as RunView

    __version__: str


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        from . import _native

        return _native.__version__
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"outlast.{home}"), name)
    # Importing a submodule binds its name here, too: this assignment gives the name back to the function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
