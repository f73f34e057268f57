"""The table of classification rules: which kernel, operation or annotation is which collective.

The decision: the rules are data, `rules.toml`, one ordered table in the very format that `--rules FILE` takes;
everything else (classification, attribution, reports) only reads it. To teach mtpprof a new collective is to add one
rule there and one real name to the test. Groups that a pattern names decide what the rule leaves open: their words
are looked up in the tables here.

A regular expression of a user's, which may take any time to match and must not.

The decision: the `regex` package in place of `re`, because it reads the same language and stops when its time is over; `re` cannot be
stopped from another thread, and no look at an expression tells whether it will be slow. The time is one budget for all expressions of a
file and all names, so that many slow matches end as one endless match does.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import regex

from mtpprof.errors import InputError
from mtpprof.models.traffic import Algorithm, Kind


class Scope(StrEnum):
    """Which events a rule speaks about."""

    KERNEL = "kernel"
    CPU_OP = "cpu_op"
    ANNOTATION = "annotation"


class Role(StrEnum):
    """What an event is to a collective."""

    COLLECTIVE = "collective"
    """The collective itself, or the first kernel of it."""
    TAIL = "tail"
    """The second kernel of a collective: its time belongs to the collective before it on the stream."""
    LAUNCH = "launch"
    """The CPU's side of a collective that runs on a device: names it and carries its shapes, is never counted itself."""
    NONE = "none"
    """Looks like communication and is none, e.g. a `wait`."""


KIND_WORDS = {
    "allreduce": Kind.ALL_REDUCE,
    "allgather": Kind.ALL_GATHER,
    "allgatherbase": Kind.ALL_GATHER,
    "allgatherintotensor": Kind.ALL_GATHER,
    "reducescatter": Kind.REDUCE_SCATTER,
    "reducescatterbase": Kind.REDUCE_SCATTER,
    "reducescattertensor": Kind.REDUCE_SCATTER,
    "alltoall": Kind.ALL_TO_ALL,
    "alltoallv": Kind.ALL_TO_ALL,
    "alltoallbase": Kind.ALL_TO_ALL,
    "alltoallsingle": Kind.ALL_TO_ALL,
    "broadcast": Kind.BROADCAST,
    "reduce": Kind.REDUCE,
    "gather": Kind.GATHER,
    "scatter": Kind.SCATTER,
    "sendrecv": Kind.SEND_RECV,
    "send": Kind.SEND_RECV,
    "recv": Kind.SEND_RECV,
    "barrier": Kind.BARRIER,
}
"""Spellings of a collective in names and in the `Collective name` argument, without underscores and in lower case."""

ALGORITHM_WORDS = {
    "RING": Algorithm.RING,
    "TREE": Algorithm.TREE,
    "NVLS": Algorithm.NVLS,
    "NVLS_TREE": Algorithm.NVLS,
    # NCCL's symmetric kernels: LL and ST write to every peer, LD reads from it, MC goes through the switch's multicast
    "AGxLL_R": Algorithm.ONE_SHOT,
    "AGxLLMC_R": Algorithm.MNNVL_ONE_SHOT,
    "RSxLD_AGxST": Algorithm.TWO_SHOT,
    "RSxLDMC_AGxSTMC": Algorithm.NVLS,
    "LL": Algorithm.DIRECT,
    "LD": Algorithm.DIRECT,
    "ST": Algorithm.DIRECT,
    "LLMC": Algorithm.MULTICAST,
    "STMC": Algorithm.MULTICAST,
    "LDMC": Algorithm.NVLS,
    "CodecFP": Algorithm.QUICKREDUCE_FP,
    "CodecQ8": Algorithm.QUICKREDUCE_Q8,
    "CodecQ6": Algorithm.QUICKREDUCE_Q6,
    "CodecQ4": Algorithm.QUICKREDUCE_Q4,
}
"""Algorithm of a word in a name; a word that is not here is an unknown algorithm."""

NORM = "residual_rmsnorm"
UNREADABLE = "unknown"
"""`fused` of a kernel that may be fused and whose name does not tell (a name cut short)."""

FUSION_WORDS = {
    "0": "",
    "false": "",
    "kAllReduce": "",
    "1": NORM,
    "true": NORM,
    "kARResidualRMSNorm": NORM,
    "2": f"{NORM}_fp8",
    "kARResidualRMSNormFP8Quant": f"{NORM}_fp8",
    "3": f"{NORM}_fp4",
    "kARResidualRMSNormFP4Quant": f"{NORM}_fp4",
    "4": f"{NORM}_out_fp8",
    "kARResidualRMSNormOutFP8Quant": f"{NORM}_out_fp8",
    "5": f"{NORM}_out_fp4",
    "kARResidualRMSNormOutFP4Quant": f"{NORM}_out_fp4",
}
"""FlashInfer's and TensorRT-LLM's `AllReduceFusionPattern`, and MNNVL's `RMSNormFusion` flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row: names that match `pattern` are this collective."""

    id: str
    pattern: re.Pattern[str] | BoundedPattern
    """Of a user's rule: bounded in time."""
    scope: Scope
    kind: Kind
    """`Kind.UNKNOWN`: the name does not tell; arguments or the operation around it may."""
    implementation: str
    algorithm: Algorithm = Algorithm.UNKNOWN
    fused: str = ""
    """What runs in the same kernel after the collective; for a tail, what it adds to the collective it completes."""
    role: Role = Role.COLLECTIVE
    completes: str = ""
    """Of a tail: id of the rule of the kernel that it completes."""
    source: str = ""


LOOKS_LIKE_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|hccl|oneccl|nvshmem|rocshmem|all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all|multimem"
    r"|lamport|cross_device|deep_ep|quick_?reduce|symm_?mem|mnnvl|c10d::|\bA2A",
    re.IGNORECASE,
)
"""Names that no rule knows and that are listed as possible communication, never counted."""


MAX_FILE_BYTES = 1 << 20

_KEYS = {
    "id",
    "pattern",
    "scope",
    "kind",
    "implementation",
    "algorithm",
    "fused",
    "role",
    "completes",
    "source",
}


@cache
def built_in_rules() -> tuple[Rule, ...]:
    """Every rule of `rules.toml`, in order: the first that matches a name decides."""
    text = resources.files("mtpprof.analyzers.calls").joinpath("rules.toml").read_text(encoding="utf-8")
    return _parse(text, "rules.toml", None)


def load_rules(path: Path) -> tuple[Rule, ...]:
    """Read a user's rules: a TOML file in the format of `rules.toml`.

    Raises:
        InputError: the file cannot be read, or a rule is wrong; names the file and the rule.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is no ordinary file; give a TOML file of rules.")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InputError(f"{path}: is larger than {MAX_FILE_BYTES:,} bytes; give a TOML file of rules.")
        return _parse(data.decode("utf-8"), str(path), Budget())
    except OSError as error:
        raise InputError(f"{path}: the rules cannot be read ({error.strerror}); check the path.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: the rules are not UTF-8 text; save the file as UTF-8.") from error


def _parse(text: str, name: str, budget: Budget | None) -> tuple[Rule, ...]:
    """Rules of a file; `budget` is None for ours, whose patterns need no bound."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{name}: not a TOML file ({error}); give each rule as a [[rule]] table.") from error
    tables = content.get("rule", [])
    if set(content) - {"rule"} or not isinstance(tables, list) or not tables:
        raise InputError(f"{name}: holds no rules; give each one as a [[rule]] table.")
    rules = tuple(
        _rule(f"{name}: rule {number}", table, budget) for number, table in enumerate(tables, start=1)
    )
    ids = [rule.id for rule in rules]
    if twice := sorted(id for id, count in Counter(ids).items() if count > 1):
        raise InputError(f"{name}: the ids {twice} are used twice; give every rule its own.")
    return rules


def _rule(where: str, table: Any, budget: Budget | None) -> Rule:
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise InputError(f"{where} is not a table of texts; write every value in quotes.")
    if unknown := set(table) - _KEYS:
        raise InputError(f"{where} has unknown keys {sorted(unknown)}; known are {sorted(_KEYS)}.")
    if missing := {"id", "pattern", "kind"} - set(table):
        raise InputError(f"{where} lacks {sorted(missing)}; a rule needs an id, a pattern and a kind.")
    text, title = table["pattern"], f"{where} ({table['id']})"
    try:
        return Rule(
            id=table["id"],
            pattern=re.compile(text) if budget is None else BoundedPattern(text, title, budget),
            scope=Scope(table.get("scope", Scope.KERNEL)),
            kind=Kind(table["kind"]),
            implementation=str(table.get("implementation", table["id"])),
            algorithm=Algorithm(table.get("algorithm", Algorithm.UNKNOWN)),
            fused=table.get("fused", ""),
            role=Role(table.get("role", Role.COLLECTIVE)),
            completes=table.get("completes", ""),
            source=table.get("source", ""),
        )
    except (re.error, ValueError) as error:
        raise InputError(f"{title} is wrong: {error}; correct it.") from error


_SHOWN_CHARS = 60


@dataclass(slots=True, kw_only=True)
class Budget:
    """Time that the expressions of one file share."""

    total_s: float = 10.0
    """Ordinary expressions need less than a millisecond for thousands of names."""
    used_s: float = 0.0

    @property
    def left_s(self) -> float:
        """What is left; 0 or less: it is used up."""
        return self.total_s - self.used_s


class BoundedPattern:
    """A compiled expression that refuses to go on once it has used up its time."""

    def __init__(self, text: str, where: str, budget: Budget) -> None:
        """Compile an expression.

        Args:
            text: The expression.
            where: What messages call it.
            budget: Time for all searches together.

        Raises:
            ValueError: it is no regular expression.
        """
        try:
            self._compiled = regex.compile(text)
        except (regex.error, RecursionError) as error:
            raise ValueError(f"{str(error) or 'its pattern is nested too deeply'}") from error
        self._where = where
        self._budget = budget

    def search(self, name: str) -> Any:
        """The first match in `name`, or None; used as `re.Pattern.search` is.

        Raises:
            InputError: its time is used up.
        """
        if self._budget.left_s <= 0:
            raise self._too_slow(name)
        start_s = time.monotonic()
        try:
            return self._compiled.search(name, timeout=self._budget.left_s)
        except TimeoutError as error:
            raise self._too_slow(name) from error
        finally:
            self._budget.used_s += time.monotonic() - start_s

    def _too_slow(self, name: str) -> InputError:
        shown = repr(name[:_SHOWN_CHARS]) + ("..." if len(name) > _SHOWN_CHARS else "")
        return InputError(
            f"{self._where}: the rules of this file need more than {self._budget.total_s:g} s to match the names of these traces, this "
            f"pattern being at {shown}; write it without repetitions of repetitions such as (a+)+."
        )
