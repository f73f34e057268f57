"""Export of traces for Perfetto.

`timeline.place` puts an arm on a time of its own, `export.Export` lays out one or several, `Export.write` makes the file.
Below it: `events`, `communication`, `counters` and `compare` fill tracks; `lanes` keeps what a track holds free of
collisions; `model` is what they hand to a writer; `protobuf` (over `wire`) and `chromejson` are the writers, `files` names them.
"""
