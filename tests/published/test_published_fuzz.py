"""Cut, damaged and mixed logs never give a wrong number: an error with file and line, or fewer numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import tool_logs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringmark.errors import UserError
from ringmark.published.claim import Claim
from ringmark.published.ingest import ingest_bytes

SAMPLES = Path(__file__).with_name("samples")
TEXTS = [
    *tool_logs.ALL.values(),
    tool_logs.prefixed(tool_logs.report(), "g7"),
    *(path.read_text(encoding="utf-8") for path in sorted(SAMPLES.iterdir())),
]
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
COORDINATES = (
    "system", "device", "world_size", "nodes", "gpus_per_node", "batch", "seqlen_global",
    "num_heads_q", "num_heads_kv", "head_dim", "hidden_size", "dtype", "causal", "kernel",
)  # fmt: skip


def claims_or_refusal(text: str | bytes) -> tuple[Claim, ...] | None:
    """The claims, or None where the log was refused; any other exception is a failure of the test."""
    data = text.encode() if isinstance(text, str) else text
    sentence = ""
    try:
        return ingest_bytes(data, "log").claims
    except UserError as error:
        sentence = str(error)
    assert re.match(r"log:\d+: ", sentence), sentence
    return None


def says_no_more(claim: Claim, original: Claim) -> bool:
    """The same number, with the same coordinates or fewer; a heading may stand in for a lost title."""
    same = ("metric", "printed", "value", "unit", "phase", "position", "format", "kind", "column")
    return (
        all(getattr(claim, name) == getattr(original, name) for name in same)
        and all(getattr(claim, name) in (None, getattr(original, name)) for name in COORDINATES)
        and claim.options.items() <= original.options.items()
    )


@pytest.mark.parametrize("text", TEXTS)
def test_the_logs_themselves_are_read(text: str) -> None:
    assert claims_or_refusal(text)


@FUZZ
@given(st.sampled_from(TEXTS), st.floats(0, 1))
def test_a_truncated_log_gives_some_of_its_numbers(text: str, where: float) -> None:
    data = text.encode()
    found = claims_or_refusal(data[: int(where * len(data))])
    whole = {claim.id: claim for claim in ingest_bytes(data, "log").claims}
    for claim in found or ():
        assert claim == whole[claim.id]


@FUZZ
@given(st.sampled_from(TEXTS), st.floats(0, 0.999), st.integers(1, 3))
def test_a_log_without_some_lines_gives_no_other_number(text: str, where: float, count: int) -> None:
    lines = text.splitlines(keepends=True)
    gone = int(where * len(lines))
    whole = {claim.id: claim for claim in ingest_bytes(text.encode(), "log").claims}
    for claim in claims_or_refusal("".join(lines[:gone] + lines[gone + count :])) or ():
        line = claim.source_line + (count if claim.source_line > gone else 0)
        assert says_no_more(claim, whole[f"log:{line}:{claim.position}"])


@FUZZ
@given(st.sampled_from(TEXTS), st.floats(0, 0.999), st.characters(codec="utf-8"))
def test_a_damaged_sign_invents_nothing(text: str, where: float, sign: str) -> None:
    place = int(where * len(text))
    damaged = text[:place] + sign + text[place + 1 :]
    lines = damaged.split("\n")
    found = claims_or_refusal(damaged)
    for claim in found or ():
        assert claim.printed in lines[claim.source_line - 1]
        if claim.value is not None:
            assert float(claim.printed) == claim.value


def content(claims: Iterable[Claim]) -> set[tuple[object, ...]]:
    """The numbers and what they measure; whose heading stands above a row of a mixed log cannot be known."""
    return {
        (
            c.metric,
            c.phase,
            c.printed,
            c.unit,
            c.seqlen_global,
            c.batch,
            c.item if c.kind == "result" else None,
        )
        for c in claims
    }


@FUZZ
@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.randoms(use_true_random=False), st.booleans())
def test_mixed_logs_give_numbers_of_their_own_rows(a: str, b: str, random, named: bool) -> None:  # type: ignore[no-untyped-def]
    """Lines of two logs in one stream, with or without the hosts that would tell them apart."""
    queues = [
        (tool_logs.prefixed(text, host) if named and not re.match(r"[gn]\d", text) else text).splitlines()
        for text, host in ((a, "g1"), (b, "g2"))
    ]
    mixed = []
    while any(queues):
        mixed.append(random.choice([queue for queue in queues if queue]).pop(0))
    allowed = content(ingest_bytes(a.encode(), "log").claims) | content(
        ingest_bytes(b.encode(), "log").claims
    )
    without_batch = {(*row[:5], None, row[6]) for row in allowed}
    for row in content(claims_or_refusal("".join(f"{line}\n" for line in mixed)) or ()):
        assert row in allowed or row in without_batch


@FUZZ
@given(st.binary(max_size=400))
def test_noise_is_refused_or_passed_over(data: bytes) -> None:
    assert not claims_or_refusal(data)


@FUZZ
@given(st.lists(st.sampled_from([line for text in TEXTS for line in text.splitlines()]), max_size=25))
def test_lines_in_any_order_never_crash(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    for claim in claims_or_refusal(text) or ():
        assert claim.printed in lines[claim.source_line - 1]
