"""Steps, phases and derived bytes: what the names of engines' annotations and the order of calls tell."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mtpprof.analyzers.calls.attribution import Attribution, ReadOptions, Window, analyze
from mtpprof.analyzers.calls.steps import STEP_NAMES, StepName, phase_of_name
from mtpprof.analyzers.calls.table import Calls, Provenance
from mtpprof.errors import UsageError
from mtpprof.models.presets import load_preset
from mtpprof.models.spec import ModelSpec, Scale
from mtpprof.ranges import CollectiveRange, phase_name, step_name
from tests.unit.analyzers.tables import NCCL_AG, NCCL_AR, WORKER, Trace, one_run, record

BF16 = "c10::BFloat16"


def shm(trace: Trace, kind: str, at: int, rows: int, width: int, ranks: int = 2) -> None:
    if kind == "AG":
        dims = [[], [rows, width], [rows * ranks, width]]
        trace.op("_C::shm_all_gather", at, 50, dims, ["Scalar", BF16, BF16])
    else:
        trace.op("_C::shm_allreduce", at, 50, [[], [rows, width]], ["Scalar", BF16])


def attribute(trace: Trace, model: ModelSpec | None = None, world: int = 2) -> Attribution:
    return analyze(one_run(trace.table(0, world), world=world), ReadOptions(model=model))


def texts(calls: Calls, column: str) -> list[str]:
    return [calls.text(column, index) for index in range(len(calls))]


def parse(name: str) -> StepName | None:
    return next((found for kind in STEP_NAMES if (found := kind.parse(name)) is not None), None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (step_name(7), StepName(number=7)),
        (
            "execute_context_0(0)_generation_4(12)",
            StepName(phase="target", rows=12, sequences=4, draft_tokens=2),
        ),
        ("execute_context_5(80)_generation_0(0)", StepName(phase="prefill", rows=80, sequences=5)),
        (
            "execute_context_3(48)_generation_5(5)",
            StepName(phase="mixed", rows=53, sequences=8, draft_tokens=0),
        ),
        ("execute_context_1(888_788544)_generation_0(0)", StepName(phase="prefill", rows=888, sequences=1)),
        (
            "execute_12_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq12sk99sqsq36sqsk44)",
            StepName(phase="target", rows=12, sequences=4, draft_tokens=2),
        ),
        (
            "execute_context_0(0)_generation_0(0)",
            StepName(phase="target", rows=0, sequences=0, empty=True),
        ),
        ("step[DECODE bs=16]", StepName(phase="target", rows=16, sequences=16)),
        ("step[EXTEND bs=2 toks=4096]", StepName(phase="prefill", rows=4096, sequences=2)),
        ("step[TARGET_VERIFY bs=32]", StepName(phase="target", sequences=32)),
        ("step[DECODE smc-head-eager bs=8 toks=16]", StepName(phase="target", rows=16, sequences=8)),
        ("step[IDLE bs=0]", StepName(phase="", sequences=0, empty=True)),
        ("ProfilerStep#551", StepName(number=551)),
        ("ProfilerStep#x", None),
        ("execute_model", None),
        ("nccl:all_reduce", None),
        ("mtpprof::step index=-3", StepName()),
        ("execute_context_1(99999999999999999999)_generation_0(0)", None),
    ],
)
def test_names_of_steps(name: str, expected: StepName | None) -> None:
    assert parse(name) == expected


@pytest.mark.parametrize(
    ("name", "phase"),
    [(phase_name("draft[2]"), "draft[2]"), ("draft_extend", "draft"), (step_name(1), ""), ("forward", "")],
)
def test_names_of_phases(name: str, phase: str) -> None:
    assert phase_of_name(name) == phase


def test_own_steps_are_the_ranges_and_calls_between_them_are_in_none() -> None:
    trace = Trace()
    for index in range(3):
        trace.note(step_name(10 + index), 1000 * index, 600)
        shm(trace, "AR", 1000 * index + 100, 4, 256)
    shm(trace, "AR", 800, 4, 256)
    found = attribute(trace)
    assert found.calls.step.tolist() == [0, -1, 1, 2]
    assert found.steps.number.tolist() == [10, 11, 12]
    assert (found.steps.end_ns - found.steps.start_ns).tolist() == [600] * 3
    assert found.steps.closed.all()


def test_vllm_steps_last_from_start_to_start_and_an_empty_one_only_ends_the_last() -> None:
    trace = Trace()
    for index in range(2):
        trace.note("execute_context_0(0)_generation_4(4)", 1000 * index, 400)
        shm(trace, "AR", 1000 * index + 100, 4, 256)
        shm(trace, "AR", 1000 * index + 700, 4, 256)
    trace.note("execute_context_0(0)_generation_0(0)", 2000, 30)
    shm(trace, "AR", 2100, 4, 256)
    found = attribute(trace)
    assert found.calls.step.tolist() == [0, 0, 1, 1, -1]
    assert found.steps.end_ns.tolist() == [1000, 2000]
    assert found.steps.closed.tolist() == [True, True]
    assert texts(found.calls, "phase") == ["target", "sample", "target", "sample", ""]


def test_the_last_step_of_a_window_is_open() -> None:
    trace = Trace()
    trace.note("execute_context_0(0)_generation_4(4)", 0, 400)
    shm(trace, "AR", 900, 4, 256)
    found = attribute(trace)
    assert (found.steps.closed.tolist(), found.steps.end_ns.tolist()) == ([False], [950])
    assert found.calls.step.tolist() == [0]


def mtp_step(trace: Trace, at: int, drafts: Iterable[str], gather_outside: bool = False) -> None:
    trace.note("execute_context_0(0)_generation_4(12)", at, 1000)
    for index, kind in enumerate(("AR", "AR", "AG")[: 2 if gather_outside else 3]):
        shm(trace, kind, at + 100 * index, 12, 256)
    for index, kind in enumerate(drafts):
        shm(trace, kind, at + 1100 + 100 * index, 4, 256)


def test_draft_passes_follow_the_annotation_and_repeat() -> None:
    trace = Trace()
    mtp_step(trace, 0, ["AR", "AG", "AR", "AG"])
    found = attribute(trace)
    expected = ["target"] * 3 + ["draft[0]"] * 2 + ["draft[1]"] * 2
    assert texts(found.calls, "phase") == expected


def test_a_gather_of_the_targets_logits_before_the_drafts_is_sampling() -> None:
    trace = Trace()
    mtp_step(trace, 0, ["AG", "AR", "AG", "AR", "AG"], gather_outside=True)
    found = attribute(trace)
    expected = ["target"] * 2 + ["sample"] + ["draft[0]"] * 2 + ["draft[1]"] * 2
    assert texts(found.calls, "phase") == expected


def test_what_does_not_repeat_is_draft_without_a_number() -> None:
    trace = Trace()
    mtp_step(trace, 0, ["AR", "AG", "AG", "AR", "AR"])
    assert texts(attribute(trace).calls, "phase") == ["target"] * 3 + ["draft"] * 5


def test_phase_ranges_and_own_ranges_tell_phases_before_annotations_do() -> None:
    trace = Trace()
    trace.note("execute_context_0(0)_generation_4(4)", 0, 5000)
    trace.note(phase_name("target"), 0, 900)
    trace.note(phase_name("draft[0]"), 1000, 900)
    trace.note(phase_name("sample"), 1100, 200)
    for at in (100, 1150, 1400, 3000):
        shm(trace, "AR", at, 4, 256)
    own = CollectiveRange(
        kind="all_reduce",
        site="embed",
        phase="draft[3]",
        shape=(1,),
        dtype="bf16",
        payload_bytes=2,
        group="tp",
        group_size=2,
        implementation="shm",
        sequence=0,
    )
    trace.note(own.name(), 500, 20)
    expected = ["target", "draft[3]", "sample", "draft[0]", "target"]
    assert texts(attribute(trace).calls, "phase") == expected


def test_kernels_belong_to_the_step_that_launched_them_and_steps_are_timed_on_the_device() -> None:
    trace = Trace()
    for index in range(3):
        trace.note(f"step[DECODE bs={4}]", 1000 * index, 300)
        trace.kernel(NCCL_AR, 5000 + 1500 * index, 200, launched=1000 * index + 100)
    found = attribute(trace)
    assert found.calls.step.tolist() == [0, 1, 2]
    assert found.steps.start_ns.tolist() == [5000, 6500, 8000]
    assert found.steps.end_ns.tolist() == [6500, 8000, 8200]
    assert found.steps.closed.tolist() == [True, True, False]
    assert texts(found.calls, "phase") == ["target"] * 3


def test_kernels_whose_launch_is_not_in_the_file_are_placed_by_their_time() -> None:
    trace = Trace()
    for index in range(2):
        trace.note("step[DECODE bs=4]", 1000 * index, 300)
        trace.kernel(NCCL_AR, 5000 + 1500 * index, 200, launched=1000 * index + 100)
    trace.kernel(NCCL_AR, 5400, 200)
    trace.kernel(NCCL_AR, 4000, 200)
    assert attribute(trace).calls.step.tolist() == [-1, 0, 0, 1]


def test_graph_launches_are_steps_where_nothing_else_tells_them() -> None:
    trace = Trace()
    for index in range(3):
        trace.graph_launch(1000 * index, 1000 + index)
        for place in range(4):
            trace.kernel(NCCL_AR, 5000 + 1500 * index + 100 * place, 50, graph=1000 + index)
    found = attribute(trace)
    assert found.calls.step.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.steps.text("source", 0) == "graph launches"


def test_pieces_of_a_model_are_not_steps() -> None:
    trace = Trace()
    for index in range(8):
        trace.graph_launch(1000 * index, 1000 + index)
        trace.kernel(NCCL_AR, 5000 + 1500 * index, 50, graph=1000 + index)
    found = attribute(trace)
    assert len(found.steps) == 0
    assert any(item.answer == "figures per step" for item in found.withheld)


def test_annotations_of_other_threads_and_nested_ones_are_no_steps() -> None:
    trace = Trace()
    for index in range(3):
        trace.note(f"ProfilerStep#{index}", 1000 * index, 900)
    trace.note("ProfilerStep#7", 100, 50, track=WORKER)
    trace.note("ProfilerStep#8", 1100, 50)
    assert attribute(trace).steps.number.tolist() == [0, 1, 2]


def eager_and_replayed(trace: Trace, replayed_batch: str) -> None:
    """A prefill of 2 sequences and 64 tokens with sizes, and a decode whose graph has none."""
    trace.note("step[EXTEND bs=2 toks=64]", 0, 900)
    sizes = [(NCCL_AR, "allreduce", 64 * 256, 64 * 256)] * 3 + [
        (NCCL_AG, "_allgather_base", 2 * 500, 2 * 1000)
    ]
    for place, (name, collective, in_elems, out_elems) in enumerate(sizes):
        fields = record(collective, in_elems, out_elems)
        trace.kernel(name, 5000 + 100 * place, 50, launched=100 + place, record=fields)
    trace.note(replayed_batch, 1000, 900)
    trace.graph_launch(1100, 1000)
    for place, (name, *_) in enumerate(sizes):
        trace.kernel(name, 6000 + 100 * place, 50, graph=1000)


def test_replayed_calls_take_their_bytes_from_the_same_place_in_an_eager_step() -> None:
    trace = Trace()
    eager_and_replayed(trace, "step[DECODE bs=16]")
    calls = attribute(trace).calls
    assert calls.payload_bytes.tolist()[4:] == [16 * 256 * 2] * 3 + [16 * 1000 * 2]
    assert set(calls.provenance.tolist()[4:]) == {Provenance.DERIVED}
    assert (
        calls.text("how", 4) == "position in the step, where 64 rows were seen with their size, for 16 rows"
    )
    assert calls.text("how", 7) == "position in the step, where 2 rows were seen with their size, for 16 rows"
    assert texts(calls, "dtype") == ["bf16"] * 8


def test_without_the_rows_of_the_batch_bytes_stay_unknown() -> None:
    trace = Trace()
    eager_and_replayed(trace, "step[TARGET_VERIFY bs=16]")
    calls = attribute(trace).calls
    assert calls.payload_bytes.tolist()[4:] == [-1] * 4


def test_another_sequence_of_collectives_gives_no_bytes() -> None:
    trace = Trace()
    eager_and_replayed(trace, "step[DECODE bs=16]")
    trace.kernel(NCCL_AR, 6900, 50, graph=1000)
    assert attribute(trace).calls.payload_bytes.tolist()[4:] == [-1] * 5


@pytest.fixture(scope="module")
def super_tiny() -> ModelSpec:
    return load_preset("nemotron-3-super", Scale.TINY)


def bare_decode(model: ModelSpec, commuted: bool) -> Trace:
    """A decode step of 4 sequences without speculation, as kernels that carry no size."""
    trace = Trace()
    trace.note("execute_context_0(0)_generation_4(4)", 0, 900)
    reduces = 1 + len(model.blocks) + (0 if commuted else model.blocks.count("E"))
    for place, name in enumerate([NCCL_AR] * reduces + [NCCL_AG]):
        trace.kernel(name, 5000 + 100 * place, 50, launched=100 + place)
    return trace


@pytest.mark.parametrize("commuted", [False, True])
def test_a_model_gives_bytes_shapes_and_sites_to_steps_that_have_its_collectives(
    super_tiny: ModelSpec, commuted: bool
) -> None:
    assert super_tiny.moe is not None
    calls = attribute(bare_decode(super_tiny, commuted), super_tiny).calls
    assert calls.text("site", 0) == "embed"
    assert calls.text("site", len(calls) - 1) == "lm_head"
    assert calls.payload_bytes[0] == 4 * super_tiny.hidden_size * 2
    assert calls.payload_bytes[len(calls) - 1] == 4 * super_tiny.vocab_size * 2
    latent = [site for site in texts(calls, "site") if site.endswith("moe.latent")]
    assert len(latent) == (0 if commuted else super_tiny.blocks.count("E"))
    assert set(calls.provenance.tolist()) == {Provenance.DERIVED}
    assert set(texts(calls, "how")) == {"dimensions of nemotron-3-super, by position in the step"}


def test_a_step_that_is_not_the_models_stays_unknown(super_tiny: ModelSpec) -> None:
    trace = bare_decode(super_tiny, commuted=False)
    trace.kernel(NCCL_AR, 9900, 50, launched=800)
    calls = attribute(trace, super_tiny).calls
    assert (calls.payload_bytes == -1).all()
    assert set(texts(calls, "how")) == {"this step's collectives are not those of nemotron-3-super"}


def windowed(window: Window, ranks: frozenset[int] | None = None) -> Attribution:
    trace = Trace()
    for index in range(5):
        trace.note(step_name(10 + index), 1000 * index, 900)
        shm(trace, "AR", 1000 * index + 100, 4, 256)
    return analyze(one_run(trace.table(0, 1), world=1), ReadOptions(window=window, ranks=ranks))


@pytest.mark.parametrize(
    ("window", "kept"),
    [
        (Window(), [0, 1, 2, 3, 4]),
        (Window(first_step=11, last_step=12), [1, 2]),
        (Window(first_step=13), [3, 4]),
        (Window(start_ns=1000, end_ns=3000), [1, 2]),
        (Window(start_ns=10_000), []),
    ],
)
def test_a_window_keeps_the_calls_in_it(window: Window, kept: list[int]) -> None:
    found = windowed(window)
    rows = found.steps.rows_of(found.calls.table, found.calls.step)
    assert found.steps.number[rows].tolist() == [10 + index for index in kept]
    assert found.steps.number.tolist() == [10 + index for index in kept], "figures per step are of these"


def test_a_step_that_the_window_cuts_is_in_no_figure_per_step() -> None:
    found = windowed(Window(start_ns=1050, end_ns=3000))
    assert (len(found.calls), found.steps.number.tolist()) == (2, [12])
    assert found.calls.step.tolist() == [-1, 0]
    assert [note for note in found.notes if "the window cuts 1 step" in note]


def test_ranks_that_are_not_there_are_refused() -> None:
    assert len(windowed(Window(), frozenset({0})).calls) == 5
    with pytest.raises(UsageError, match=r"no trace of ranks \[3\]"):
        windowed(Window(), frozenset({3}))
