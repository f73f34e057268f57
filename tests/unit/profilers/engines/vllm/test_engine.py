"""The parent's side of the vLLM engine: what it refuses before anything starts, and what it starts."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from mtpprof.errors import MissingEnvironmentError, UsageError
from mtpprof.profilers import machine
from mtpprof.profilers.engines.vllm import patches
from mtpprof.profilers.engines.vllm.engine import VllmEngine, core_binding, temporary_folder
from mtpprof.profilers.engines.vllm.patches import Probed
from mtpprof.profilers.process import Nodes
from mtpprof.profilers.run import choose_engine
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.records import RunRecord

from .records import make_run

ONE_HOST = Nodes()


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM for the CPU that has every patch point."""
    present(monkeypatch, cpu=True)


def present(monkeypatch: pytest.MonkeyPatch, *, cpu: bool, lacking: str = "") -> None:
    monkeypatch.setattr(patches, "vllm_version", lambda: "0.32.0")
    monkeypatch.setattr(patches, "vllm_root", lambda: Path("/"))
    monkeypatch.setattr(patches, "is_cpu_build", lambda: cpu)
    monkeypatch.setattr(
        patches,
        "probe_installed",
        lambda platform: [
            Probed(point=point, found=point.needed_by != lacking)
            for point in patches.PATCH_POINTS
            if platform in point.platforms
        ],
    )


def preflight(run: RunRecord, directory: RunDirectory, nodes: Nodes = ONE_HOST) -> None:
    VllmEngine().preflight(run, directory, nodes)


def test_without_vllm_the_way_to_it_is_told(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "vllm_version", lambda: None)
    with pytest.raises(MissingEnvironmentError, match=r"vLLM is not installed; `make install-vllm`"):
        preflight(make_run(), directory)


@pytest.mark.parametrize(
    ("cpu", "device", "words"), [(True, "cuda", "is the CPU's"), (False, "cpu", "is not the CPU's")]
)
def test_the_build_must_fit_the_device(
    cpu: bool, device: str, words: str, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    present(monkeypatch, cpu=cpu)
    with pytest.raises(MissingEnvironmentError, match=words):
        preflight(msgspec.structs.replace(make_run(), device=device), directory)


def test_a_vllm_without_the_seam_is_refused(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    present(monkeypatch, cpu=True, lacking=patches.ANNOTATIONS)
    with pytest.raises(MissingEnvironmentError, match=r"_all_reduce_out_place.*install 0\.28\.0"):
        preflight(make_run(), directory)


def test_a_workaround_is_needed_only_by_whom_it_is_for(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    present(monkeypatch, cpu=True, lacking=patches.on_cpu("nemotron-h"))
    preflight(make_run(), directory)
    with pytest.raises(MissingEnvironmentError, match="gated experts"):
        preflight(make_run("nemotron-3-super", draft_tokens=0), directory)


@pytest.mark.usefixtures("installed")
def test_what_vllm_cannot_do_is_refused_before_anything_starts(directory: RunDirectory) -> None:
    with pytest.raises(UsageError, match="distributed_executor_backend=ray"):
        preflight(make_run(), directory, Nodes(count=2, endpoint="h:1"))
    with pytest.raises(UsageError, match="no synthetic acceptance on the CPU"):
        preflight(msgspec.structs.replace(make_run(), acceptance_length=2.0), directory)
    with pytest.raises(UsageError, match="--capture nsys"):
        preflight(msgspec.structs.replace(make_run(), capture=["nsys"]), directory)
    with pytest.raises(UsageError, match="--dtype fp64"):
        preflight(make_run(dtype="fp64"), directory)
    with pytest.raises(UsageError, match="kimi-k3"):
        preflight(make_run("kimi-k3", draft_tokens=0), directory)
    with pytest.raises(UsageError, match="write KEY=VALUE"):
        preflight(make_run(engine_arguments=("nonsense",)), directory)


@pytest.mark.usefixtures("installed")
def test_a_full_disk_is_told_before_the_weights_are_written(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = 10**18
    monkeypatch.setattr("mtpprof.profilers.sizes.run_directory_bytes", lambda run: huge)
    with pytest.raises(MissingEnvironmentError, match="MB free"):
        preflight(make_run(), directory)


def test_a_missing_patch_point_takes_only_its_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    present(monkeypatch, cpu=True)
    assert not set(VllmEngine().refusals("cpu")) & {
        "local-argmax",
        "commutative-reduce",
        "allreduce-norm-fusion",
    }
    present(monkeypatch, cpu=True, lacking="local-argmax")
    refused = VllmEngine().refusals("cpu")
    assert refused["local-argmax"].startswith("UNSUPPORTED: vLLM 0.32.0 has no vllm.")
    assert not set(refused) & {"commutative-reduce", "allreduce-norm-fusion"}


@pytest.mark.usefixtures("installed")
def test_deviations_are_told_once_each() -> None:
    found = VllmEngine().deviations(make_run(concurrencies=(1, 8)))
    assert len(found) == len(set(found))
    assert any("sparse attention" in text for text in found)
    given = VllmEngine().deviations(make_run(engine_arguments=("model=org/model",)))
    assert not any("sparse attention" in text for text in given)


def test_the_driver_is_told_what_vllm_needs(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    command = VllmEngine().command(make_run(), directory, ONE_HOST)
    environment = command.environment
    assert command.argv[-2:] == ("mtpprof.profilers.engines.vllm.driver", str(directory.root))
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == core_binding(2)
    temporary = Path(environment["TMPDIR"])
    assert temporary in command.scratch
    assert not Path(environment["TORCHINDUCTOR_CACHE_DIR"]).is_relative_to(temporary)
    assert directory.root / "scratch" in command.scratch
    temporary.rmdir()
    online = VllmEngine().command(make_run(engine_arguments=("model=org/model",)), directory, ONE_HOST)
    assert "HF_HUB_OFFLINE" not in online.environment
    Path(online.environment["TMPDIR"]).rmdir()


def test_what_the_user_binds_stays(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-3|4-7")
    command = VllmEngine().command(make_run(), directory, ONE_HOST)
    assert command.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-3|4-7"
    Path(command.environment["TMPDIR"]).rmdir()


def test_sockets_find_room_below_a_deep_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    for base in (str(deep), "/tmp"):
        monkeypatch.setattr("tempfile.tempdir", base)
        folder = temporary_folder()
        assert folder.is_dir()
        assert len(str(folder / ("x" * 36))) <= 107
        folder.rmdir()


@pytest.mark.parametrize(
    ("cores", "ranks", "binding"),
    [
        ({0, 1}, 2, "0|1"),
        ({0, 1}, 4, "0|1|0|1"),
        ({4, 5, 6, 7}, 2, "4,5|6,7"),
        ({0, 1, 2}, 2, "0|1"),
        ({3}, 1, "3"),
    ],
)
def test_ranks_share_the_cores_at_hand(
    cores: set[int], ranks: int, binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores, raising=False)
    assert core_binding(ranks) == binding


@pytest.mark.parametrize(
    ("vllm", "gpus", "engine", "device"),
    [
        ("0.32.0", 4, "vllm", "cuda"),
        ("0.32.0", 2, "reference", "cpu"),
        ("0.32.0", 0, "reference", "cpu"),
        (None, 4, "reference", "cuda"),
        (None, 0, "reference", "cpu"),
    ],
)
def test_auto_takes_vllm_where_it_is_installed_and_devices_suffice(
    vllm: str | None, gpus: int, engine: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "vllm_version", lambda: vllm)
    monkeypatch.setattr(machine, "gpu_names", lambda: ["GPU"] * gpus)
    choice = choose_engine("auto", "auto", 4, ONE_HOST)
    assert (choice.engine, choice.device) == (engine, device)
    assert choice.reason
