"""The file that the NVTX injection writes: what its C source and its reader agree on.

A file holds one process. A header is followed by chunks, each written by one thread: *definitions* (names, registered
strings, payload schemas) or *events*. An event chunk is a slotted page: 32-byte events grow from the front, their blobs
(inline text, payload) from the back. Counts are stored after what they count, so a process that was killed leaves a file
of whole events. A chunk that was reserved and could not be mapped is zeros, in whole pages.

All numbers are little-endian; a blob or definition field starts at a multiple of 8 bytes.

    definition    bytes u32, kind u16, domain u16, id u64, then fields: u64, or text as length u64 + bytes
    blob          inline text; a start's or end's plain payload (8 bytes); extended payloads: count u64, then each as
                  schema u64, bytes u32, stored bytes u32, and the stored bytes

The layouts are lists of NumPy fields; this module imports nothing.
"""

from __future__ import annotations

from enum import IntEnum

FILE_SUFFIX = ".nvtx"

INJECTION_VARIABLE = "NVTX_INJECTION64_PATH"
"""Where NVTX itself looks for a tool. A path that cannot be loaded is ignored in silence."""
DIRECTORY_VARIABLE = "MTPPROF_NVTX_DIR"
"""Where the library writes one file per process."""
RANK_VARIABLE = "MTPPROF_NVTX_RANK"
"""Rank to write into the header; where it is empty the library falls back to `RANK`, which torch's launcher sets."""
MAX_BYTES_VARIABLE = "MTPPROF_NVTX_MAX_BYTES"
"""Size limit of one file; default 1 GiB. Events past it are counted as dropped."""

MAGIC = b"MTPNVTX\0"
VERSION = 2
"""Version 1 is read too: it has no `lost` and neither THREAD nor LOST events."""
BYTE_ORDER_MARK = 0x01020304
CHUNK_MAGIC = 0x4B4E4843
CHUNK_BYTES_MAX = 512 << 10
"""Of a chunk of events; a chunk of definitions is as large as its largest definition asks."""

FILE_HEADER = [
    ("magic", "S8"),
    ("version", "<u4"),
    ("header_bytes", "<u4"),
    ("byte_order", "<u4"),
    ("pid", "<u4"),
    ("parent_pid", "<u4"),
    ("rank", "<i4"),
    ("opened_monotonic_ns", "<u8"),
    ("opened_realtime_ns", "<u8"),
    ("opened_uncertainty_ns", "<u8"),
    ("closed_monotonic_ns", "<u8"),
    ("closed_realtime_ns", "<u8"),
    ("closed_uncertainty_ns", "<u8"),
    ("end_bytes", "<u8"),
    ("dropped_events", "<u8"),
    ("host", "S64"),
    ("command", "S256"),
]
"""Of both versions; `LOST` follows it in version 2."""

LOST = [
    ("limit", "<u8"),
    ("disk", "<u8"),
    ("descriptors", "<u8"),
    ("memory", "<u8"),
    ("file", "<u8"),
    ("handler", "<u8"),
    ("start", "<u8"),
    ("reserved", "<u8"),
]
"""Events that were not recorded, by reason; `dropped_events` is their sum."""

CHUNK_HEADER = [
    ("magic", "<u4"),
    ("kind", "<u4"),
    ("chunk_bytes", "<u8"),
    ("thread_id", "<u8"),
    ("monotonic_ns", "<u8"),
    ("realtime_ns", "<u8"),
    ("uncertainty_ns", "<u8"),
    ("used", "<u8"),
    ("thread_name", "S16"),
    ("back", "<u8"),
]

EVENT = [
    ("monotonic_ns", "<u8"),
    ("value", "<u8"),
    ("message", "<u4"),
    ("category", "<u4"),
    ("domain", "<u2"),
    ("blob", "<u2"),
    ("text_bytes", "<u2"),
    ("kind", "u1"),
    ("payload_type", "u1"),
]

DEFINITION_HEADER_BYTES = 16
BLOB_PAYLOAD_HEADER_BYTES = 16


class ChunkKind(IntEnum):
    """What a chunk holds."""

    EVENTS = 1
    DEFINITIONS = 2


class EventKind(IntEnum):
    """What an event says."""

    PUSH = 1
    POP = 2
    START = 3
    END = 4
    MARK = 5
    THREAD = 6
    """Events after it in its chunk are of thread `value`; its text is the thread's name."""
    LOST = 7
    """Pushes and pops of this thread and domain are missing here: `value` is pops of ranges that were open << 32 | pushes still open."""


class PayloadType(IntEnum):
    """Type of an event's payload. 1 to 6 are NVTX's `nvtxPayloadType_t`; `EXTENDED` is described by a schema."""

    NONE = 0
    UINT64 = 1
    INT64 = 2
    DOUBLE = 3
    UINT32 = 4
    INT32 = 5
    FLOAT = 6
    EXTENDED = 7


class DefinitionKind(IntEnum):
    """What a definition defines."""

    DOMAIN = 1
    STRING = 2
    CATEGORY = 3
    THREAD = 4
    SCHEMA = 5
    ENUM = 6
