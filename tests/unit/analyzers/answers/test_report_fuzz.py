"""Run directories that were damaged, edited or cut off: a report or one sentence, never anything else."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtpprof.analyzers.answers.run_report import make_report
from mtpprof.errors import MtpprofError
from mtpprof.rundir.directory import RunDirectory
from tests.runs import Recipe, write_run

VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 0, 1, 10**30, 1.5, "", "x", [], {}, [[]], [[0]], [[-5, 3]], True]
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(models=("nemotron-3-super",), rounds=2, steps=2, profile_steps=1)
    return write_run(tmp_path_factory.mktemp("fuzz") / "run", recipe).root


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [place for key in value for place in places(value[key], (*path, key))]
    if isinstance(value, list):
        return found + [
            place for index in range(len(value)) for place in places(value[index], (*path, index))
        ]
    return found


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_records(made: Path, data: st.DataObject) -> None:
    files = sorted(made.rglob("*.json"))
    file = data.draw(st.sampled_from(files), label="file")
    original = file.read_bytes()
    content = json.loads(original)
    place = data.draw(st.sampled_from(places(content)), label="place")
    changed = copy.deepcopy(content)
    target = changed
    for key in place[:-1]:
        target = target[key]
    if data.draw(st.booleans(), label="remove"):
        del target[place[-1]]
    else:
        target[place[-1]] = data.draw(VALUES, label="value")
    file.write_text(json.dumps(changed))
    sentence = "."
    try:
        msgspec.json.encode(make_report(RunDirectory(made)))
    except MtpprofError as error:
        sentence = str(error)
    finally:
        file.write_bytes(original)
    assert sentence.endswith(".")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_files_that_are_gone_or_cut(made: Path, data: st.DataObject) -> None:
    files = [path for path in sorted(made.rglob("*")) if path.is_file() and path.name != "report.json"]
    file = data.draw(st.sampled_from(files), label="file")
    original = file.read_bytes()
    if data.draw(st.booleans(), label="gone"):
        file.unlink()
    else:
        file.write_bytes(original[: data.draw(st.integers(0, len(original)), label="length")])
    sentence = "."
    try:
        msgspec.json.encode(make_report(RunDirectory(made)))
    except MtpprofError as error:
        sentence = str(error)
    finally:
        file.write_bytes(original)
    assert sentence.endswith(".")


def test_a_folder_in_place_of_a_file(made: Path, tmp_path: Path) -> None:
    copy_of = tmp_path / "run"
    shutil.copytree(made, copy_of)
    timing = next(copy_of.rglob("timing.json"))
    timing.unlink()
    timing.mkdir()
    report = make_report(RunDirectory(copy_of))
    assert [f"{timing}: not a regular file" in sentence for sentence in report.damaged] == [True]
