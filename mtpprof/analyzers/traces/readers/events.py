"""The fields of a Chrome-format event that mtpprof needs, as msgspec Structs, and the lenient way to the same Structs.

Strict decoding of typed Structs is an order of magnitude faster than dicts, so unions admit every type that real
producers write (AMD writes streams as strings, vLLM writes process ids as strings) and all normalising happens later on
whole columns. `lenient_event` takes what strict decoding refuses: an already parsed dict with fields of any type.
"""

from __future__ import annotations

from typing import Any

import msgspec

Number = int | float | str | None
Text = str | int | float | None


class Args(msgspec.Struct, gc=False):
    """Arguments of an event."""

    device: Number = -1
    stream: Number = -1
    correlation: Number = -1
    external_id: Number = msgspec.field(default=-1, name="External id")
    old_external_id: Number = msgspec.field(default=-1, name="external id")
    """The spelling of torch 1.x on kernels."""
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    old_dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    collective: Text = msgspec.field(default=None, name="Collective name")
    in_elems: Number = msgspec.field(default=-1, name="In msg nelems")
    out_elems: Number = msgspec.field(default=-1, name="Out msg nelems")
    dtype: Text = None
    group_size: Number = msgspec.field(default=-1, name="Group size")
    group: Text = msgspec.field(default=None, name="Process Group Name")
    group_ranks: str | list[int] | None = msgspec.field(default=None, name="Process Group Ranks")
    seq: Number = msgspec.field(default=-1, name="Seq")
    name: Text = None
    """Of metadata events: the name of the process or thread."""


class Event(msgspec.Struct, gc=False):
    """An event whose times are read as float64: exact to the nanosecond below 2^43 µs."""

    ph: str = ""
    name: Text = ""
    cat: Text = None
    pid: Text = None
    tid: Text = None
    ts: float | str | None = None
    dur: float | str | None = None
    args: Args | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """The same with the text of its times, for files whose times do not fit a float64."""

    ph: str = ""
    name: Text = ""
    cat: Text = None
    pid: Text = None
    tid: Text = None
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: Args | None = None


NO_ARGS = Args()

decode_events = msgspec.json.Decoder(list[Event]).decode
decode_exact_events = msgspec.json.Decoder(list[ExactEvent]).decode

DECODE_ERRORS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What decoding of hostile text raises; `ValidationError` is a `DecodeError`."""

_ARG_FIELDS = tuple((field.encode_name, field.name, field.type) for field in msgspec.structs.fields(Args))


def lenient_event(value: object) -> Event | None:
    """An event from an already parsed JSON value; None where it is no object."""
    if not isinstance(value, dict):
        return None
    args = value.get("args")
    ph = value.get("ph")
    return Event(
        ph=ph if isinstance(ph, str) else "",
        name=_scalar(value.get("name")),
        cat=_scalar(value.get("cat")),
        pid=_scalar(value.get("pid")),
        tid=_scalar(value.get("tid")),
        ts=_time(value.get("ts")),
        dur=_time(value.get("dur")),
        args=_lenient_args(args) if isinstance(args, dict) else None,
    )


def _lenient_args(values: dict[str, Any]) -> Args:
    found: dict[str, Any] = {}
    for written, name, kind in _ARG_FIELDS:
        if written not in values:
            continue
        value = values[written]
        if kind is msgspec.Raw:
            found[name] = _raw(value)
        elif name == "group_ranks":
            found[name] = value if isinstance(value, str) else str(value)
        elif (scalar := _scalar(value)) is not None:
            found[name] = scalar
    return Args(**found)


def _raw(value: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (RecursionError, UnicodeEncodeError, msgspec.EncodeError):
        return msgspec.Raw()


def _scalar(value: object) -> Text:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _time(value: object) -> float | str | None:
    scalar = _scalar(value)
    if isinstance(scalar, int):
        return float(scalar) if abs(scalar) < 1 << 64 else None
    return scalar
