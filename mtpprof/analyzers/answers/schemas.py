"""JSON Schemas of what mtpprof prints with `--format json`, published with the package.

The schemas are made from the types of the answers and stored, so that a consumer can read them without Python and a change of an answer
shows as a change of a file. `python -m mtpprof.analyzers.answers.schemas` writes them anew; a test holds that they are current.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from mtpprof.analyzers.answers.analysis import Analysis
from mtpprof.analyzers.answers.budget import BudgetReport
from mtpprof.analyzers.answers.run_report import Report
from mtpprof.analyzers.compare.targets import ComparisonReport
from mtpprof.analyzers.predict.predict import PredictionReport
from mtpprof.analyzers.predict.published import PublishedReport

FOLDER = "schemas"


def answers() -> dict[str, Any]:
    """The type of every answer, by the name of its schema file. To publish another answer is to add a row."""
    return {
        "report": Report,
        "analysis": list[Analysis],
        "comparison": ComparisonReport,
        "check": BudgetReport,
        "prediction": PredictionReport,
        "published": PublishedReport,
    }


def make_schema(name: str) -> dict[str, Any]:
    """The schema of an answer, as its type says."""
    schema = msgspec.json.schema(answers()[name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"mtpprof {name}",
        **schema,
    }


def schema_text(name: str) -> str:
    """The schema as its file has it."""
    return json.dumps(make_schema(name), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def published_schema(name: str) -> dict[str, Any]:
    """The schema that the package carries."""
    text = resources.files("mtpprof").joinpath(FOLDER, f"{name}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def write_schemas(folder: Path) -> None:
    """Write every schema into a folder."""
    for name in answers():
        (folder / f"{name}.json").write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(__file__).parents[2] / FOLDER)
