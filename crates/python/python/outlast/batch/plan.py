"""The input held against what is recorded: what is done, what is left, and whether that is as it was."""

from __future__ import annotations

import array
import dataclasses
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator

from ..errors import JobChanged
from . import code
from .options import FREE_RERUNS, Options
from .source import Source

if TYPE_CHECKING:
    from .. import _native

#: States of an item, one byte each.
FRESH, RECORDED, ENDED, LEFT_OUT, EMITTED = range(5)


@dataclasses.dataclass
class Plan:
    """The items that are to be run. `state` has a byte for each item, `seqs` the entry of a recorded one."""

    source: Source
    state: bytearray
    seqs: "array.array[int]"
    version: bytes
    #: Rule for done items of other code: rerun for the caller's own `version`; a digest only warns.
    on_version: str
    recorded: "_native.Items"
    #: Done and skipped items that stay as they are, dead ones, and those of other code among the done.
    done: int = 0
    skipped: int = 0
    dead: int = 0
    old_code: int = 0
    #: Done items that run again, for other content or code.
    rerun: int = 0
    vanished: int = 0

    def key(self, index: int) -> str:
        """The key of an item; the item must not be left out."""
        key = self.source.keys[index]
        assert key is not None
        return key

    def fresh(self) -> Iterator[int]:
        """The indexes of the items that are still to be run, in input order."""
        at = self.state.find(FRESH)
        while at >= 0:
            yield at
            at = self.state.find(FRESH, at + 1)

    @property
    def left(self) -> int:
        return self.state.count(FRESH)


def make(source: Source, fn: Callable[..., Any], options: Options, recorded: "_native.Items", expired: bool) -> Plan:
    """The plan. Errors: `JobChanged`, before anything is called.

    With `expired`, or `resume="never"`, nothing that is recorded counts: it is for the caller to reset.
    """
    explicit = options.version is not None
    version = code.of_version(options.version) if explicit else code.digest(fn)
    plan = Plan(
        source=source,
        state=bytearray(len(source)),
        seqs=array.array("q", bytes(8 * len(source))),
        version=version,
        on_version="rerun" if explicit else "keep",
        recorded=recorded,
    )
    changed_content = 0
    anything = len(recorded) > 0
    for index, key in enumerate(source.keys):
        if key is None:
            plan.state[index] = LEFT_OUT
            continue
        if not anything:
            continue
        # Without `key=`, the key is the content's digest, so the content cannot have changed.
        content = source.content(index) if options.key is not None else None
        found = recorded.find(key, content, version)
        if found is None or expired:
            continue
        seq, standing, _, _, _, other_content, other_code = found
        is_done = standing in ("done", "skipped")
        if other_content and is_done:
            changed_content += 1
            if options.on_change == "fail":
                raise JobChanged(
                    f"item {key!r} of job {options.job} is done, and has other content now",
                    hint='on_change="rerun" runs it again, "keep" keeps its result',
                )
        again = (other_content and options.on_change == "rerun") or (other_code and explicit)
        if standing in ("open", "failed") or (again and (is_done or standing == "dead")):
            plan.rerun += is_done
            continue
        plan.state[index] = RECORDED
        plan.seqs[index] = seq
        plan.old_code += other_code and is_done
        if standing == "dead":
            plan.dead += 1
        elif standing == "skipped":
            plan.skipped += 1
        else:
            plan.done += 1
    plan.vanished = recorded.vanished() if anything else 0
    _check(plan, options, changed_content)
    return plan


def _check(plan: Plan, options: Options, changed_content: int) -> None:
    done = plan.done + plan.skipped + plan.rerun
    if options.resume == "if_unchanged" and (plan.old_code or plan.rerun or changed_content) and not options.rerun:
        raise JobChanged(
            f"job {options.job} is not as it was: {changed_content} of {done} done items have other content, and "
            f"{plan.old_code + plan.rerun} other content or code",
            hint='rerun=True goes on, resume="always" keeps what is done',
        )
    if plan.rerun > FREE_RERUNS * done and not options.rerun:
        raise JobChanged(
            f"{plan.rerun} of {done} done items of job {options.job} would run again, and be paid again: "
            f"their {'content' if changed_content else 'version'} changed",
            hint='rerun=True runs them; on_change="keep" or the old version keeps their results',
        )


def is_expired(ended_at_us: int | None, status: str, ttl: float | None) -> bool:
    """Whether a job's results are too old to be reused. `ttl` counts in seconds from the job's completion; an unfinished
    job's results never are."""
    if ttl is None or status != "completed" or ended_at_us is None:
        return False
    return time.time() - ended_at_us / 1e6 > ttl
