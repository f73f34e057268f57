"""Every page of the dashboard and its keys, driven as a user does, on runs of known content."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from mtpprof.cli.tui.app import DashboardApp
from mtpprof.cli.tui.widgets.row_table import RowTable
from mtpprof.cli.tui.widgets.timeline_view import TimelineView
from mtpprof.ranges import step_name
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.follow import EventFollower
from tests.functional.tui import (
    CLOCK_NS,
    HOSTILE,
    cells,
    dashboard,
    finished_run,
    press,
    screen_text,
    settle,
    text_of,
    with_name,
    words,
    write_events,
)
from tests.runs import Recipe
from tests.unit.analyzers.traces.nvtx.written import REALTIME_OFFSET, Written, pop, push

DEEPSEEK = Recipe(models=("deepseek-v3.2",), speed=lambda arm: 0.8 if arm == "local-argmax" else 1.0)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished run of two models; local-argmax is faster by a fifth."""
    recipe = Recipe(speed=lambda arm: 0.8 if arm == "local-argmax" else 1.0)
    return finished_run(tmp_path_factory.mktemp("tui") / "run", recipe)


def app_on(path: Path, page: str | None = None) -> DashboardApp:
    return dashboard([path], page=page, clock=lambda: CLOCK_NS)


async def test_a_finished_run_opens_on_what_it_saved(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert app.current_mode == "saved"
        rows = {row[0]: row for row in cells(app, "#arms")}
        assert set(rows) == {"allreduce-norm-fusion", "local-argmax", "all-on"}
        assert rows["local-argmax"][1] == "ENGAGED"
        assert rows["local-argmax"][6].startswith("saved 20")
        assert rows["all-on"][6] == "within noise"


async def test_nothing_is_called_saved_that_did_not_engage(tmp_path: Path) -> None:
    idle = Recipe(
        models=("deepseek-v3.2",),
        speed=lambda arm: 0.8 if arm == "allreduce-norm-fusion" else 1.0,
        seen=lambda arm, ledger: tuple(replace(entry, fused="") for entry in ledger),
    )
    directory = finished_run(tmp_path / "run", idle)
    directory.write(directory.root / "run.json", {**_plain(directory.run()), "deviations": ["eager mode"]})
    app = app_on(directory.root)
    async with app.run_test(size=(140, 50)) as pilot:
        await settle(pilot)
        row = cells(app, "#arms")[0]
        assert (row[0], row[1], row[6]) == ("allreduce-norm-fusion", "NOT ENGAGED", "differs, not engaged")
        assert "differs, not engaged: nothing that was switched engaged" in words(text_of(app, "#rungs"))
        effects = {row[0]: row[-1] for row in cells(app, "#effects")}
        assert effects["allreduce-norm-fusion"] == "not engaged"
        assert "A/A floor: " in words(text_of(app, "#effects-title"))
        assert words(text_of(app, "#notes")).count("runs something else than was asked for: Doctor (7)") == 1


async def test_rungs_stand_in_order_and_follow_the_cursor(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "down")
        text = words(text_of(app, "#rungs"))
        places = [
            text.index(f"{number} {name}")
            for number, name in enumerate(
                ("Engaged?", "Calls", "Bytes", "Time", "Above noise?", "Same output?"), 1
            )
        ]
        assert places == sorted(places)
        assert "local-argmax ENGAGED" in text
        assert "saved 20" in text
        assert app.store.b == "local-argmax"


async def test_the_waterfall_starts_and_ends_at_the_measured_steps(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "down")
        rows = cells(app, "#bars")
        fall = app.store.differences[1].waterfall
        assert fall is not None
        assert rows[0][0] == "step before"
        assert rows[-1][0] == "step after"
        assert len(rows) == len(fall.parts) + 3
        assert any("█" in row[3] for row in rows)


async def test_enter_on_a_bar_goes_to_the_collectives_behind_it(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "down", "enter")
        assert app.focused is not None
        assert app.focused.id == "bars"
        bars = app.screen.query_one("#bars", RowTable)
        argmax = next(index for index, row in enumerate(bars.rows) if row.tag == "argmax")
        await press(pilot, *["down"] * argmax, "enter")
        assert app.current_mode == "collectives"
        assert app.store.filter == "lm_head"
        assert {row[2].rpartition(".")[2] for row in cells(app, "#collectives")} == {"lm_head"}


async def test_a_bar_without_collectives_says_so(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "enter")
        bars = app.screen.query_one("#bars", RowTable)
        compute = next(index for index, row in enumerate(bars.rows) if row.tag == "other compute")
        await press(pilot, *["down"] * compute, "enter")
        assert app.current_mode == "saved"
        assert any("no collective" in str(notice.message) for notice in app._notifications)


async def test_effects_of_the_factorial_are_shown(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 60)) as pilot:
        await settle(pilot)
        assert [row[0] for row in cells(app, "#effects")] == [
            "allreduce-norm-fusion",
            "local-argmax",
            "allreduce-norm-fusion × local-argmax",
        ]


async def test_cases_and_arms_are_chosen_by_keys(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "right_square_bracket")
        assert [row[0] for row in cells(app, "#arms")] == ["commutative-reduce"]
        assert "nemotron-3-super" in text_of(app, "#case-line")
        await press(pilot, "left_square_bracket", "b")
        assert app.store.b == "local-argmax"


async def test_collectives_show_both_sides_and_the_ledger(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(200, 60)) as pilot:
        await settle(pilot)
        app.store.choose_arm("local-argmax")
        await press(pilot, "4", "d")
        rows = cells(app, "#collectives")
        assert {row[0] for row in rows} == {"all_gather"}
        gone = [row for row in rows if row[10] == "-"]
        added = [row for row in rows if row[9] == "-"]
        assert len(gone) == len(added) == 3
        assert {row[7] for row in rows} == {"measured"}
        assert {row[16] for row in rows} == {"ok"}
        assert {row[5] for row in added} == {"fp32"}


async def test_collectives_filter_and_sort(run: RunDirectory) -> None:
    app = app_on(run.root, "collectives")
    async with app.run_test(size=(200, 60)) as pilot:
        await settle(pilot)
        await press(pilot, "slash", *"kind:all_gather", "enter")
        assert {row[0] for row in cells(app, "#collectives")} == {"all_gather"}
        table = app.screen.query_one("#collectives", RowTable)
        await press(pilot, *["s"] * 6)
        assert table.sorted_by == "size"
        sizes = [row.keys[6] for row in table.rows]
        assert sizes == sorted(sizes, key=lambda size: -float(size or 0))
        await press(pilot, "R")
        assert [row.keys[6] for row in table.rows] == sorted(sizes, key=lambda size: float(size or 0))


async def test_a_bracket_in_the_filter_is_a_bracket(run: RunDirectory) -> None:
    app = app_on(run.root, "collectives")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "slash", "left_square_bracket", "slash")
        assert app.store.filter == "[/"
        assert cells(app, "#collectives") == []
        await press(pilot, "escape")
        assert app.focused is not None
        assert app.focused.id == "collectives"


async def test_collectives_by_rank(run: RunDirectory) -> None:
    app = app_on(run.root, "collectives")
    async with app.run_test(size=(200, 60)) as pilot:
        await settle(pilot)
        over_all = len(cells(app, "#collectives"))
        await press(pilot, "n")
        rows = cells(app, "#collectives")
        assert len(rows) == 2 * over_all
        assert {row[3] for row in rows} == {"0", "1"}


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_rank_is_in_sight_where_rows_are_by_rank(run: RunDirectory, size: tuple[int, int]) -> None:
    app = app_on(run.root, "collectives")
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        table = app.screen.query_one("#collectives", RowTable)
        head = screen_text(app).splitlines()[table.region.y]
        assert "rank" not in head
        assert "rank" not in table.hidden_columns
        assert text_of(app, "#unit") == "calls and times per step and rank"
        await press(pilot, "s", "n")
        assert "rank" in screen_text(app).splitlines()[table.region.y]
        assert table.sorted_by == "kind"
        assert "by rank (n)" in text_of(app, "#unit")
        assert "changed only" not in text_of(app, "#unit")
        await press(pilot, "n")
        assert "rank" not in screen_text(app).splitlines()[table.region.y]


async def test_an_empty_table_of_changes_says_why(run: RunDirectory) -> None:
    app = app_on(run.root, "collectives")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        app.store.arm_a = app.store.arm_b
        app.refresh_page()
        await settle(pilot)
        await press(pilot, "d")
        assert cells(app, "#collectives") == []
        assert "changed only (d)" in text_of(app, "#unit")
        assert "Only what changed is shown, and nothing did; d shows all." in screen_text(app)


@pytest.mark.parametrize("arm", ["baseline", "allreduce-norm-fusion"])
@pytest.mark.parametrize("gone", [False, True])
async def test_a_side_that_cannot_be_read_is_named_and_counts_nothing(
    run: RunDirectory, tmp_path: Path, arm: str, gone: bool
) -> None:
    shutil.copytree(run.root, tmp_path / "damaged")
    directory = RunDirectory(tmp_path / "damaged")
    case = directory.run().cases[0]
    if gone:
        shutil.rmtree(directory.arm(case.id, arm))
    else:
        path = directory.captured(case.id, arm, case.tp)[1]
        path.write_bytes(path.read_bytes()[:300])
    letter = "A" if arm == "baseline" else "B"
    app = app_on(directory.root, "collectives")
    async with app.run_test(size=(200, 60)) as pilot:
        await settle(pilot)
        banner = words(text_of(app, "#verdict"))
        assert banner.startswith(f"! {letter} {arm}: ")
        assert "no trace of rank 0, 1" in banner if gone else path.name in banner
        rows = cells(app, "#collectives")
        assert rows
        assert {row[9 if letter == "A" else 10] for row in rows} == {"?"}
        assert {row[11] for row in rows} == {"?"}
        assert {row[16] for row in rows} == {"B ok" if letter == "A" else "A ok"}
        assert f"{letter}: not read" in text_of(app, "#call-line")
        await press(pilot, "d")
        assert cells(app, "#collectives") == []
        assert "there is nothing to compare with" in screen_text(app)
        await press(pilot, "5")
        assert f"! {letter} {arm}: " in words(text_of(app, "#verdict"))
        assert "rank 0" in text_of(app, "#call-line")


async def test_the_timeline_says_why_there_is_nothing_to_draw(run: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(run.root, tmp_path / "damaged")
    directory = RunDirectory(tmp_path / "damaged")
    case = directory.run().cases[0]
    for arm in ("baseline", "allreduce-norm-fusion"):
        shutil.rmtree(directory.arm(case.id, arm))
    app = app_on(directory.root, "timeline")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        text = words(text_of(app, "#call-line"))
        assert "A baseline: no trace of rank 0, 1; B allreduce-norm-fusion: no trace" in text


async def test_one_capture_alone_has_nothing_to_compare(run: RunDirectory) -> None:
    app = app_on(run.arm(run.run().cases[0].id, "baseline"), "collectives")
    async with app.run_test(size=(200, 60)) as pilot:
        await settle(pilot)
        rows = cells(app, "#collectives")
        assert rows
        assert {(row[10], row[11], row[13], row[15]) for row in rows} == {("", "", "", "")}
        assert "B:" not in text_of(app, "#call-line")


async def test_timeline_describes_zooms_and_pans(run: RunDirectory) -> None:
    app = app_on(run.root, "timeline")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        view = app.screen.query_one(TimelineView)
        _, whole = view.window_ns
        await press(pilot, "full_stop")
        assert "rank 0: all_reduce" in words(text_of(app, "#call-line"))
        assert "payload" in text_of(app, "#call-line")
        await press(pilot, "plus", "plus")
        start, span = view.window_ns
        assert span == pytest.approx(whole / 4)
        await press(pilot, "shift+right")
        assert view.window_ns[0] == pytest.approx(start + span / 4)
        await press(pilot, "0")
        assert view.window_ns == (0.0, whole)
        await press(pilot, "n")
        assert view.step == 1
        text = screen_text(app)
        assert " A r1" in text
        assert " B r0" in text
        assert "█" in text
        assert "░" in text


async def test_timeline_is_moved_with_the_mouse(run: RunDirectory) -> None:
    app = app_on(run.root, "timeline")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        view = app.screen.query_one(TimelineView)
        await press(pilot, "full_stop", "plus")
        start, span = view.window_ns
        lane = text_of(app, "#call-line")
        await pilot.mouse_down(view, offset=(60, 3))
        await pilot.hover(view, offset=(49, 3))
        await pilot.mouse_up(view, offset=(49, 3))
        await settle(pilot)
        assert view.window_ns[0] == pytest.approx(start + span * 11 / 110)
        assert view.window_ns[1] == span
        await pilot.hover(view, offset=(80, 3))
        assert view.window_ns[0] == pytest.approx(start + span * 11 / 110)
        await pilot.click(view, offset=(60, 4))
        await settle(pilot)
        assert text_of(app, "#call-line") != lane


async def test_narrow_tables_cut_their_widest_column(run: RunDirectory) -> None:
    app = app_on(run.root, "live")
    async with app.run_test(size=(30, 20)) as pilot:
        await settle(pilot)
        lines = screen_text(app).splitlines()
        assert any("allreduce-" in line and "…" in line and "✓✓✓ P✓" in line for line in lines)
        assert any(line.endswith(": w") for line in lines)


async def test_timeline_shows_compute_beside_the_collectives(run: RunDirectory) -> None:
    app = app_on(run.root, "timeline")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert screen_text(app).count("  comp  ") == 4
        await press(pilot, "down", "full_stop")
        assert "rank 0: operation aten::rsqrt" in words(text_of(app, "#call-line"))
        assert "other compute" in text_of(app, "#call-line")
        assert "▄" in screen_text(app)
        await press(pilot, "c")
        assert "  comp  " not in screen_text(app)
        assert "rank 0: operation" not in text_of(app, "#call-line")
        await press(pilot, "c")
        assert screen_text(app).count("  comp  ") == 4


async def test_compute_is_hidden_where_not_all_lanes_have_room(tmp_path: Path) -> None:
    directory = finished_run(tmp_path / "run", Recipe(models=("nemotron-3-super",), tp=4, rounds=2))
    app = app_on(directory.root, "timeline")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        shown = screen_text(app)
        assert all(f"{side} r{rank} " in shown for side in "AB" for rank in range(4))
        assert "  comp  " not in shown
        await press(pilot, "c")
        assert "  comp  " in screen_text(app)
        await press(pilot, *["down"] * 15)
        assert "B (commutative-reduce) rank 3" in words(text_of(app, "#call-line"))
        assert "▶  comp" in screen_text(app)


async def test_ranks_show_waits_stragglers_and_clocks(run: RunDirectory) -> None:
    app = app_on(run.root, "ranks")
    async with app.run_test(size=(160, 50)) as pilot:
        await settle(pilot)
        matrix = cells(app, "#matrix")
        assert [row[:2] for row in matrix] == [("A", "0"), ("A", "1"), ("B", "0"), ("B", "1")]
        assert matrix[1][3] != "0 ns"
        assert cells(app, "#stragglers")[0][:2] == ("A", "0")
        assert len(cells(app, "#clocks")) >= 2


async def test_doctor_names_what_limits_the_answers(run: RunDirectory) -> None:
    app = app_on(run.root, "doctor")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        verdicts = {row[2] for row in cells(app, "#verdicts")}
        assert "no_kernels" in verdicts
        assert "note" in verdicts


async def test_live_shows_the_grid_of_a_run_in_progress(run: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(run.root, tmp_path / "live")
    directory = RunDirectory(tmp_path / "live")
    record = directory.run()
    directory.write(directory.root / "run.json", {**_plain(record), "status": "running"})
    write_events(directory, until=12)
    (directory.root / "logs").mkdir()
    directory.log(0).write_text("\x1b[31mhello from rank 0\x1b[0m\n[/bold] not markup\n")
    app = app_on(directory.root)
    with directory.locked():
        await _watch(app, directory)


async def _watch(app: DashboardApp, directory: RunDirectory) -> None:
    record = directory.run()
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert app.current_mode == "live"
        rows = {row[0].strip(): row for row in reversed(cells(app, "#grid"))}
        case = record.cases[0]
        assert rows["baseline"][1].startswith("✓✓")
        grid = "".join(row[1] for row in cells(app, "#grid"))
        assert grid.count("✓") == 12
        assert grid.count("▶") == 1
        text = words(text_of(app, "#progress"))
        total = sum(len(c.order) * len(c.arms) + sum(a.repeats is None for a in c.arms) for c in record.cases)
        assert f"12/{total} windows" in text
        assert "left" in text
        assert len(cells(app, "#rank-states")) == case.tp
        shown = screen_text(app)
        assert "hello from rank 0" in shown
        assert "[/bold] not markup" in shown
        assert rows["local-argmax"][4] in ("faster", "within noise")
        write_events(directory)
        directory.write(directory.root / "run.json", {**_plain(record), "status": "complete"})
        for _ in range(200):
            await pilot.pause(0.05)
            if app.store.record is not None and app.store.record.status == "complete":
                break
        assert f"{total}/{total} windows" in words(text_of(app, "#progress"))


async def test_live_shows_calls_and_bytes_as_soon_as_an_arm_was_profiled(
    run: RunDirectory, tmp_path: Path
) -> None:
    shutil.copytree(run.root, tmp_path / "live")
    directory = RunDirectory(tmp_path / "live")
    record = directory.run()
    case = record.cases[0]
    directory.write(directory.root / "run.json", {**_plain(record), "status": "running"})
    rounds = sum(map(len, case.order))
    write_events(directory, until=rounds)
    app = app_on(directory.root)
    with directory.locked():
        async with app.run_test(size=(160, 40)) as pilot:
            await settle(pilot)
            assert [row[6] for row in cells(app, "#grid")[1:3]] == ["22 expected", "22 expected"]
            started = next(event for event in EventFollower(run).new() if event["event"] == "profile_started")
            directory.nvtx.mkdir()
            at = started["t_ns"] - REALTIME_OFFSET
            events = [push(at + 10, step_name(0)), pop(at + 20)]
            (directory.nvtx / "rank0.pid1.nvtx").write_bytes(Written(events=events, rank=0).data())
            write_events(directory, until=rounds + 1)
            for _ in range(200):
                await pilot.pause(0.05)
                if cells(app, "#grid")[1][6] != "22 expected":
                    break
            assert cells(app, "#grid")[1][6] == "0 seen, 22 expected!"
            assert cells(app, "#grid")[1][7].startswith("0 B, ")
            assert cells(app, "#grid")[2][6] == "22 expected"


async def test_a_run_that_failed_says_why_and_can_be_resumed(run: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(run.root, tmp_path / "failed")
    directory = RunDirectory(tmp_path / "failed")
    changed = {**_plain(directory.run()), "status": "failed", "error": "rank 1 was killed; see its log."}
    directory.write(directory.root / "run.json", changed)
    app = app_on(directory.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        assert "rank 1 was killed" in text_of(app, "#progress")
        await press(pilot, "7")
        assert ("run", "error", "failed") in {row[:3] for row in cells(app, "#verdicts")}


def _plain(record: object) -> dict[str, object]:
    import msgspec

    plain: dict[str, object] = msgspec.to_builtins(record)
    return plain


@pytest.mark.parametrize("damage", ["{", "", '{"schema_version": 99}', '{"schema_version": 1}', "\x00\xff"])
async def test_a_broken_run_directory_shows_its_verdict(tmp_path: Path, damage: str) -> None:
    (tmp_path / "run.json").write_text(damage, encoding="latin-1")
    app = app_on(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(100):
            await pilot.pause(0.02)
            if app.store.verdict:
                break
        assert "run.json" in text_of(app, "#verdict")
        for key in "1234567":
            await press_raw(pilot, key)


async def press_raw(pilot: object, key: str) -> None:
    await pilot.press(key)  # type: ignore[attr-defined]
    await pilot.pause()  # type: ignore[attr-defined]


async def test_traces_without_a_run_are_compared(run: RunDirectory) -> None:
    case = run.run().cases[0].id
    app = dashboard([run.arm(case, "baseline"), run.arm(case, "local-argmax")], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(160, 40)) as pilot:
        for _ in range(300):
            await settle(pilot)
            if app.store.differences:
                break
        assert app.current_mode == "collectives"
        assert app.store.case is not None
        assert len(app.store.case.arms) == 2
        await press(pilot, "3")
        (row,) = cells(app, "#arms")
        assert row[0] == "local-argmax"
        assert row[2] == "0"


async def test_what_is_no_trace_shows_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("[1, 2")
    app = dashboard([tmp_path], clock=lambda: CLOCK_NS)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "holds no event" in text_of(app, "#verdict")
        await press(pilot, "7")
        assert {"truncated", "no_events", "unknown_rank"} <= {row[2] for row in cells(app, "#verdicts")}


async def test_hostile_names_are_shown_as_they_are(run: RunDirectory, tmp_path: Path) -> None:
    root = with_name(run.root, tmp_path / "hostile", "mtp.lm_head", HOSTILE)
    app = app_on(root)
    async with app.run_test(size=(200, 60)) as pilot:
        await settle(pilot)
        for key in "2345671":
            await press(pilot, key)
            shown = screen_text(app)
            assert "\x1b" not in shown
            assert "\u202e" not in shown
        await press(pilot, "4")
        sites = {row[2] for row in cells(app, "#collectives")}
        assert HOSTILE in sites
        assert "[/bold]op[b" in screen_text(app)


async def test_help_lists_the_keys_of_page_and_widgets(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "5", "question_mark")
        texts = {row[1] for row in cells(app, "#keys")}
        assert {"Quit", "Export to Perfetto", "Zoom in", "Next call", "Arm B"} <= texts
        await press(pilot, "escape")
        assert app.current_mode == "timeline"


async def test_every_page_and_export_is_in_the_palette(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {
            "Go to Timeline",
            "Export to Perfetto",
            "Report as md",
            "Report as html",
            "Report as csv",
            "Compare with another run",
            "Quit",
        } <= titles
        assert "Report as json" not in titles  # the run's own record would be written over
        await press(pilot, "ctrl+p")
        assert "CommandPalette" in type(app.screen).__name__


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_leaving_takes_one_key(run: RunDirectory, key: str) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press(key)
        await pilot.pause()
        assert app._exit


async def test_ascii_mode_draws_nothing_else(run: RunDirectory, tmp_path: Path) -> None:
    root = with_name(run.root, tmp_path / "hostile", "mtp.lm_head", HOSTILE)
    app = dashboard([root], ascii_only=True, clock=lambda: CLOCK_NS)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for key in ("1", "2", "3", "4", "5", "6", "7", "question_mark"):
            await press(pilot, key)
            assert screen_text(app).isascii()


@pytest.mark.parametrize("size", [(40, 15), (80, 24), (200, 60), (20, 6)])
async def test_every_page_draws_at_every_size(run: RunDirectory, size: tuple[int, int]) -> None:
    app = app_on(run.root)
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        for key in "1234567":
            await press(pilot, key)
            lines = screen_text(app).splitlines()
            assert len(lines) == size[1]
            assert lines[0].startswith("mtpprof")


async def test_the_theme_can_be_light(run: RunDirectory) -> None:
    app = app_on(run.root)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await press(pilot, "t")
        assert app.theme == "textual-light"


async def test_a_report_is_written_beside_the_run(run: RunDirectory, tmp_path: Path) -> None:
    shutil.copytree(run.root, tmp_path / "copy")
    app = app_on(tmp_path / "copy")
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await press(pilot, "M")
        assert "local-argmax" in (tmp_path / "copy" / "report.md").read_text()
        await press(pilot, "W")
        assert "<html" in (tmp_path / "copy" / "report.html").read_text()


async def test_style_sheets_are_not_read_again_for_a_page(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them takes longer than a key may."""
    app = app_on(run.root)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        times = []
        reparse = app.stylesheet.reparse

        def counted() -> None:
            times.append(app.current_mode)
            reparse()

        monkeypatch.setattr(app.stylesheet, "reparse", counted)
        for key in "1234567":
            await press(pilot, key)
        assert times == []
        await press(pilot, "t")
        changed = len(times)
        assert changed > 0
        for key in "1234567":
            await press(pilot, key)
        assert len(times) == changed


@pytest.mark.parametrize("page", ["1", "2", "4", "6"])
async def test_a_page_that_was_hidden_takes_the_new_theme(run: RunDirectory, page: str) -> None:
    shown = {}
    for keys in ((page, "3", "t", page), ("3", "t", page)):
        app = app_on(run.root)
        async with app.run_test(size=(80, 24)) as pilot:
            await settle(pilot)
            for key in keys:
                await press(pilot, key)
            await press(pilot, "escape")
            shown[keys] = app.export_screenshot(title="")
    first, second = (re.sub(r"terminal-\d+", "", text) for text in shown.values())
    assert first == second
