"""The entry point that vLLM calls in every process: without mtpprof's driver it does nothing."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from mtpprof.profilers.engines.vllm import VARIABLE, patching, plugin
from mtpprof.profilers.engines.vllm.handshake import (
    Handshake,
    Setting,
    read_handshake,
    setting_of,
)

HANDSHAKE = Handshake(family="deepseek", blocks="AD", draft_blocks="AE", device="cpu")


def test_vllm_finds_the_plugin() -> None:
    entries = [
        entry for entry in metadata.entry_points(group="vllm.general_plugins") if entry.name == "mtpprof"
    ]
    assert [entry.value for entry in entries] == ["mtpprof.profilers.engines.vllm.plugin:register"]


def test_without_the_driver_it_imports_nothing() -> None:
    program = (
        "import sys\n"
        "from mtpprof.profilers.engines.vllm.plugin import register\n"
        "register(); register()\n"
        "print(' '.join(name for name in sys.modules if name.split('.')[0] in ('torch', 'msgspec', 'vllm', 'nvtx')))\n"
        "print([name for name in sys.modules if name.startswith('mtpprof.profilers.engines.vllm.')])\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    heavy, ours = found.splitlines()
    assert heavy == ""
    assert ours == "['mtpprof.profilers.engines.vllm.plugin']"


def test_with_the_driver_it_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Handshake] = []
    monkeypatch.setattr(patching, "apply_patches", seen.append)
    environment: dict[str, str] = {}
    HANDSHAKE.write(environment)
    monkeypatch.setenv(VARIABLE, environment[VARIABLE])
    plugin.register()
    assert seen == [HANDSHAKE]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run_id": 3}', "1"])
def test_a_word_that_is_not_the_drivers_is_ignored(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    plugin.register()
    assert read_handshake({VARIABLE: text}) is None


def test_switches_travel_in_the_configuration_that_caches_are_keyed_by() -> None:
    arm = Setting(switched=["commutative-reduce", "local-argmax"], enabled=["local-argmax"])
    assert setting_of(arm.additional_config()) == arm
    assert arm.additional_config() != Setting(switched=arm.switched).additional_config()


@pytest.mark.parametrize("config", [None, {}, {"mtpprof": 1}, {"mtpprof": {"enabled": "x"}}, []])
def test_a_configuration_of_somebody_else_switches_nothing(config: object) -> None:
    assert setting_of(config) == Setting()
