"""What a launch form would do, told before it is started.

The decision: its command line is read and planned by the very code that `mtpprof run` uses, so that what is said here is what will happen,
whatever stands in the field for more options.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mtpprof.cli.tui.launch_form import LaunchForm
from mtpprof.errors import MtpprofError
from mtpprof.models.optimizations.catalogue import CATALOGUE
from mtpprof.profilers.plan import Case
from mtpprof.profilers.run import RunOptions, check_request

Eligible = dict[str, tuple[bool, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """What would happen."""

    sentence: str
    """Engine, cases and windows; or why it cannot run."""
    ok: bool
    eligible: Eligible
    """By optimization: whether any of the models can use it, and which cannot and why."""


def preview(form: LaunchForm, read_plan: Callable[[Sequence[str]], RunOptions]) -> PlanPreview:
    """Check a form as `run` will; runs in the background, since models are resolved and devices asked for.

    Args:
        form: What is filled in.
        read_plan: Reads the words behind `mtpprof run` as that command does.
    """
    try:
        options = read_plan(form.words()[1:])
        request = check_request(options)
        # What can be switched does not depend on what is switched; a plan that asks for what no model can use would be refused.
        every = check_request(replace(options, plan=replace(options.plan, settings={})))
    except MtpprofError as error:
        return PlanPreview(sentence=str(error), ok=False, eligible={})
    choice, cases = request.choice, request.cases
    windows = sum(
        len(case.order) * len(case.arms) + sum(arm.repeats is None for arm in case.arms) for case in cases
    )
    arms = sum(len(case.arms) for case in cases)
    return PlanPreview(
        sentence=f"engine {choice.engine} on {choice.device}: {len(cases)} cases, {arms} arms, {windows} windows",
        ok=True,
        eligible=_eligible(every.cases),
    )


def _eligible(cases: Sequence[Case]) -> Eligible:
    found = {}
    for name in CATALOGUE:
        refusals = {
            case.spec.name: case.not_applicable[name] for case in cases if name in case.not_applicable
        }
        able = list(dict.fromkeys(case.spec.name for case in cases if name not in case.not_applicable))
        reasons = "; ".join(f"{model}: {reason}" for model, reason in refusals.items())
        said = f"{', '.join(able)}" + (f" (not {reasons})" if reasons and able else reasons)
        found[name] = (bool(able), said)
    return found
