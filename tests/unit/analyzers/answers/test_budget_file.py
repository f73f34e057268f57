"""Budget files: what is written is read back, and damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.analyzers.answers.budget_file import ArmBudget, Budget, Limit, budget_toml, load_budget
from mtpprof.errors import InputError


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("schema_version = 1\narm = []", "no \\[\\[arm\\]\\]"),
        ("schema_version = 9\n[[arm]]", "newer mtpprof"),
        ("schema_version = 1\n[[arm]]\nstep_ns = 'fast'", "not a budget"),
        ("[[arm", "not a TOML file"),
        ("[[arm]]", "not a budget"),
        ("schema_version = 1\nconfidence = 1\n[[arm]]", r"not a budget \(.*confidence"),
        ("schema_version = 1\nconfidence = nan\n[[arm]]", r"not a budget \(.*confidence"),
        ("schema_version = 1\ntolerance = nan\n[[arm]]", r"not a budget \(.*tolerance"),
        ("schema_version = 1\n[[arm]]\nstep_ns = 0", r"not a budget \(.*step_ns"),
        ("schema_version = 1\n[[arm]]\nsteps_ns = 5", r"unknown field `steps_ns` - at `\$.arm\[0\]`"),
        ("schema_version = 1\n[[arm]]\n[[arm.limit]]\ncalls = inf", r"not a budget \(.*calls"),
        ("schema_version = 1\n[[arm]]\n[[arm.limit]]\ncalls = -1", r"not a budget \(.*calls"),
        ("\ud800", "not a TOML file"),
    ],
)
def test_damaged_budgets_are_named(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "b.toml"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=reason):
        load_budget(path)


def test_a_budget_that_never_ends_is_refused_unopened() -> None:
    with pytest.raises(InputError, match="/dev/zero: is not a regular file but a character device"):
        load_budget(Path("/dev/zero"))


def test_a_missing_budget_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.toml"):
        load_budget(tmp_path / "nowhere.toml")


texts = st.text(st.characters(codec="utf-8"), max_size=12)
limits = st.builds(
    Limit,
    batch=texts,
    phase=texts,
    kind=texts,
    calls=st.floats(0, 1e6),
    payload_bytes=st.none() | st.floats(0, 1e12),
    wire_bytes=st.none() | st.floats(0, 1e12),
)
arm_budgets = st.builds(
    ArmBudget,
    case=texts,
    arm=texts,
    engaged=st.lists(texts, max_size=2).map(tuple),
    step_ns=st.none() | st.integers(1, 10**12),
    step_noise_ns=st.none() | st.integers(1, 10**12),
    machine=texts,
    device=texts,
    limit=st.lists(limits, max_size=3).map(tuple),
)


@given(arms=st.lists(arm_budgets, min_size=1, max_size=3))
def test_what_is_written_is_read_back(
    arms: list[ArmBudget], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("budget") / "b.toml"
    budget = Budget(schema_version=1, arm=arms)
    path.write_text(budget_toml(budget, "a run"), encoding="utf-8")
    assert load_budget(path) == budget
