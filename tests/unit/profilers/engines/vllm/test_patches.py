"""Patch points are looked for in source, without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mtpprof.profilers.engines.vllm import patches
from mtpprof.profilers.engines.vllm.patches import (
    ANNOTATIONS,
    PATCH_POINTS,
    PatchPoint,
    Probed,
    missing,
    on_cpu,
    probe,
)
from mtpprof.profilers.engines.vllm.switches import SWITCHES

SOURCE = """
import os as system
from a import b, c as d
FLAG: bool = True
other = 1
raise RuntimeError("importing this is an error")

def function(): ...

class Thing(Base):
    field: int = 0
    def method(self):
        self.attribute = 1
        self.counter += 1
        not_self.hidden = 2

if FLAG:
    def conditional(): ...
else:
    conditional2 = None
try:
    from e import guarded
except ImportError:
    guarded = None
"""


def point(name: str, module: str = "vllm.module") -> PatchPoint:
    return PatchPoint(module=module, name=name, needed_by="x", purpose="a test")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "vllm" / "package").mkdir(parents=True)
    (tmp_path / "vllm" / "module.py").write_text(SOURCE)
    (tmp_path / "vllm" / "package" / "__init__.py").write_text("def inside(): ...\n")
    (tmp_path / "vllm" / "broken.py").write_text("def (:\n")
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        *("function", "Thing", "Thing.field", "Thing.method", "Thing.attribute", "Thing.counter"),
        *("system", "b", "d", "FLAG", "other", "conditional", "conditional2", "guarded"),
    ],
)
def test_what_a_module_defines_sets_or_imports_is_found(
    tree: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "PATCH_POINTS", (point(name),))
    assert [item.found for item in probe(tree, "cpu")] == [True]
    assert "vllm.module" not in sys.modules


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("Thing.hidden", "vllm.module"),
        ("method", "vllm.module"),
        ("function", "vllm.broken"),
        ("function", "vllm.none"),
        ("inside", "vllm.module"),
    ],
)
def test_what_is_not_there_is_missing(
    tree: Path, name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "PATCH_POINTS", (point(name, module),))
    assert [item.found for item in probe(tree, "cpu")] == [False]


def test_a_package_is_looked_up_in_its_init(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "PATCH_POINTS", (point("inside", "vllm.package"),))
    assert [item.found for item in probe(tree, "cpu")] == [True]


def test_only_the_points_of_a_platform_are_looked_for(tree: Path) -> None:
    names = {item.point.text for item in probe(tree, "cpu")}
    assert "vllm.models.deepseek_v32.nvidia.mtp.fused_allreduce_rms_norm" not in names
    assert names < {item.point.text for item in probe(tree, "cuda")} | names


def test_what_lacks_a_point_is_unsupported_with_the_reason() -> None:
    items = [Probed(point=point("a"), found=True), Probed(point=point("b"), found=False)]
    (reason,) = missing(items).values()
    assert "vllm.module.b" in reason
    assert "a test" in reason
    assert "0.32.0" in reason
    assert missing(items[:1]) == {}


def test_every_point_is_needed_by_something_that_exists() -> None:
    known = {*SWITCHES, ANNOTATIONS, on_cpu("nemotron-h")}
    assert {item.needed_by for item in PATCH_POINTS} <= known
