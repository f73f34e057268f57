"""What an event is, by its name: collective, tail of one, launch of one, or none.

The decision: classification is of *names*, once per distinct name and never per event, by the ordered table of
`rules`. The user's own rules (`--rules FILE`, TOML) stand before the built-in ones. A name that no rule knows and
that looks like communication is reported as unknown, so that a new kernel shows up as a question and not as compute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mtpprof.analyzers.calls.rules import (
    ALGORITHM_WORDS,
    FUSION_WORDS,
    KIND_WORDS,
    LOOKS_LIKE_COMMUNICATION,
    UNREADABLE,
    Role,
    Rule,
    Scope,
    built_in_rules,
)
from mtpprof.models.traffic import Algorithm, Kind

NAME_LIMIT = 4096
"""Characters of a name that are looked at; demangled kernels of several hundred thousand characters exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """What the name of an event says."""

    rule: str
    """Id of the rule that decided."""
    role: Role
    kind: Kind
    implementation: str
    algorithm: Algorithm
    fused: str
    completes: str = ""
    """Of a tail: id of the rule whose kernel it completes."""


def kind_of_word(word: str) -> Kind:
    """Kind behind a spelling such as `AllGather`, `_allgather_base` or `reduce_scatter_tensor_coalesced`."""
    key = word.lower().replace("_", "").removesuffix("coalesced")
    return KIND_WORDS.get(key, Kind.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """Applies rules to names; remembers each name, since the ranks of a run share theirs."""

    rules: tuple[Rule, ...] = field(default_factory=built_in_rules)
    _known: dict[tuple[Scope, str], Classification | None] = field(default_factory=dict, repr=False)

    def classify(self, name: str, scope: Scope) -> Classification | None:
        """What `name` is; None: no rule knows it."""
        key = (scope, name)
        if key not in self._known:
            self._known[key] = self._classify(name[:NAME_LIMIT], scope)
        return self._known[key]

    def looks_like_communication(self, name: str, scope: Scope) -> bool:
        """Whether no rule knows `name` and yet it looks like a collective."""
        return (
            LOOKS_LIKE_COMMUNICATION.search(name[:NAME_LIMIT]) is not None
            and self.classify(name, scope) is None
        )

    def _classify(self, name: str, scope: Scope) -> Classification | None:
        for rule in self.rules:
            if rule.scope is scope and (match := rule.pattern.search(name)):
                return _apply(rule, match.groupdict())
        return None


def _apply(rule: Rule, words: dict[str, str | None]) -> Classification:
    kind, algorithm, fused, implementation = rule.kind, rule.algorithm, rule.fused, rule.implementation
    if word := words.get("kind"):
        kind = kind_of_word(word)
    if word := words.get("algorithm"):
        algorithm = ALGORITHM_WORDS.get(word, ALGORITHM_WORDS.get(word.upper(), Algorithm.UNKNOWN))
    if word := words.get("fusion"):
        fused = FUSION_WORDS.get(word, UNREADABLE)
    if word := words.get("protocol"):
        implementation = f"{implementation}/{word}"
    return Classification(
        rule=rule.id,
        role=rule.role,
        kind=kind,
        implementation=implementation,
        algorithm=algorithm,
        fused=fused,
        completes=rule.completes,
    )


def with_user_rules(rules: Iterable[Rule]) -> Classifier:
    """A classifier that asks `rules` first and the built-in table after them."""
    return Classifier(rules=(*rules, *built_in_rules()))
