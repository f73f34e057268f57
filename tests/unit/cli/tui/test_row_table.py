"""The table, not drawn."""

from __future__ import annotations

from mtpprof.cli.tui.widgets.row_table import RowTable


def test_hidden_columns_are_of_one_table() -> None:
    assert RowTable().hidden_columns == ()
    assert "hidden_columns" not in vars(RowTable)
