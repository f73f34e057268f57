"""Pictures of the dashboard for README and docs, out of a finished run.

    cd <folder above runs> && python <project>/docs/make_pictures.py runs/<run>

The path is shown in the pictures as it is given.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mtpprof.cli.commands.run import read_options
from mtpprof.cli.tui.app import DashboardApp
from mtpprof.cli.tui.plan_preview import preview
from mtpprof.rundir.directory import RunDirectory
from mtpprof.rundir.follow import EventFollower

PICTURES = Path(__file__).resolve().parent / "img"
SIZE = (120, 36)
PAGES: dict[str, tuple[str, ...]] = {
    "live": (),
    "saved": (),
    "collectives": ("d",),
    "timeline": ("n", "plus", *["full_stop"] * 4),
}
"""Keys pressed on each page before its picture is taken."""
ARM = "local-argmax"


async def picture(run: Path, page: str, keys: tuple[str, ...]) -> str:
    """A page as SVG."""
    events = EventFollower(RunDirectory(run)).new()
    now_ns = int(events[-1]["t_ns"]) if events else 0
    app = DashboardApp([run], plan=lambda form: preview(form, read_options), page=page, clock=lambda: now_ns)
    async with app.run_test(size=SIZE) as pilot:
        await _settle(app)
        app.store.choose_arm(ARM)
        app.refresh_page()
        await _settle(app)
        await pilot.press(*keys)
        await _settle(app)
        return app.export_screenshot(title=f"mtpprof dashboard {run}")


async def _settle(app: DashboardApp) -> None:
    quiet = 0
    while quiet < 5:
        await asyncio.sleep(0.05)
        quiet = 0 if app.background.busy or app.store.record is None else quiet + 1


def main() -> None:
    """Write all pictures."""
    run = Path(sys.argv[1])
    for page, keys in PAGES.items():
        target = PICTURES / f"dashboard-{page}.svg"
        target.write_text(asyncio.run(picture(run, page, keys)), encoding="utf-8")
        sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main()
