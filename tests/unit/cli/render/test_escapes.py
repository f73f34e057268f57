"""Names in each output: nothing that anybody wrote is markup, a link, a picture or a formula."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpprof.cli.render.escapes import (
    cell_in_markdown,
    in_markdown,
    in_spreadsheet,
    printable,
    sentence_in_markdown,
)

HOSTILE = (
    "![x](http://example.com/pixel.png)",
    "[click](https://example.com)",
    "[click][ref]",
    "[ref]: https://example.com",
    "https://example.com",
    "www.example.com",
    "@everyone",
    "<img src=x onerror=alert(1)>",
    "&lt;script>",
    "*bold* and `code` and ~~gone~~",
    "_leading_ and __dunder__",
    "a|b\\c",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_shows_a_name_and_nothing_else(name: str) -> None:
    shown = in_markdown(name)
    for markup in ("](", "![", "][", "://", "@", "<", "www."):
        assert markup not in shown
    plain = re.sub(r"\\(.)", r"\1", shown)
    for entity, char in (("&#58;", ":"), ("&#64;", "@"), ("&#46;", "."), ("&lt;", "<"), ("&amp;", "&")):
        plain = plain.replace(entity, char)
    assert plain == name


@pytest.mark.parametrize(
    "name",
    [
        "void ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)",
        "all_gather [2, 512] bf16 → [2, 2]",
    ],
)
def test_what_is_no_markup_stays_readable(name: str) -> None:
    assert in_markdown(name) == name


def test_a_cell_is_one_line_and_bold_where_it_is_so_as_a_whole() -> None:
    assert cell_in_markdown("a\nb") == "a b"
    assert cell_in_markdown("**within noise**") == "**within noise**"
    assert cell_in_markdown("**a** b") == r"\*\*a\*\* b"


def test_code_in_a_sentence_stays_code() -> None:
    assert sentence_in_markdown("`a*b[0]` is [not](x)") == r"`a*b[0]` is [not\]\(x)"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_with_backticks_does_not_leave_its_code(name: str) -> None:
    shown = sentence_in_markdown(f"`a` {name} `b`")
    outside = "".join(shown.split("`")[0::2]) if "\\`" not in shown else shown
    assert "](" not in outside
    assert "<" not in outside


@pytest.mark.parametrize(
    "name",
    [
        "=1+1",
        '=HYPERLINK("http://example.com")',
        "@SUM(A1)",
        "+cmd|' /C calc'!A0",
        "-2+3+cmd|' /C calc'!A0",
        "-SUM(A1:A9)",
        "+A1",
        "  =1",
        "\n=1",
    ],
)
def test_no_cell_is_a_formula(name: str) -> None:
    assert in_spreadsheet(name) == f"'{printable(name)}"


@pytest.mark.parametrize(
    "figure",
    [
        "-1",
        "+3.2 %",
        "-12.5 µs",
        "- 3",
        "-",
        "+1,024 B",
        "-1.5 ms (-2 ms - -1 ms)",
        "−3 ms",
        "a=b",
        "1-2",
        "-1e-3",
    ],
)
def test_figures_stay_as_they_are(figure: str) -> None:
    assert in_spreadsheet(figure) == figure


@given(st.text())
def test_whatever_a_name_holds_it_is_no_formula(name: str) -> None:
    assert not in_spreadsheet(name).lstrip().startswith(("=", "@"))
