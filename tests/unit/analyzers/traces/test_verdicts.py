from __future__ import annotations

from mtpprof.analyzers.traces.verdicts import VERDICTS, Answer, Problem, Severity, Verdict, withheld, worst


def problem(verdict: Verdict) -> Problem:
    return Problem(verdict=verdict, sentence="x.")


def test_every_verdict_has_its_meaning() -> None:
    assert set(VERDICTS) == set(Verdict)


def test_what_forbids_an_answer_is_a_warning_or_worse_and_has_a_remedy() -> None:
    for verdict, info in VERDICTS.items():
        if info.severity >= Severity.WARNING:
            assert info.remedy, verdict
        if info.forbids - {Answer.NESTING}:
            assert info.severity >= Severity.WARNING, verdict
        if info.severity is Severity.ERROR:
            assert info.forbids == frozenset(Answer), verdict


def test_withholding_names_the_reasons() -> None:
    problems = [problem(Verdict.TRUNCATED), problem(Verdict.MISSING_RANKS), problem(Verdict.TIME_NOT_EXACT)]
    assert withheld(problems, Answer.CROSS_RANK) == tuple(problems[:2])
    assert withheld(problems, Answer.COUNTS) == (problems[0],)
    assert withheld(problems[1:], Answer.COUNTS) == ()
    assert withheld([problem(Verdict.EMPTY)], Answer.TIME)


def test_the_gravest_counts() -> None:
    problems = [problem(Verdict.OVERLAPPING_LANES), problem(Verdict.TRUNCATED), problem(Verdict.NO_KERNELS)]
    assert worst(problems) is Severity.WARNING
    assert worst([]) is Severity.OK
