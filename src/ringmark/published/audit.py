"""The audit: every rule over every claim, and the page that its findings make."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections import Counter
from collections.abc import Sequence
from types import ModuleType

from ringmark.flops import FORMULA
from ringmark.published import rules
from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.finding import Certainty, Finding

_MEANING = {
    Certainty.CONTRADICTION: "the printed texts cannot all be right",
    Certainty.SUSPECT: "possible, but against a law of the problem or against other rows",
    Certainty.NOTE: "worth knowing before the numbers are used",
}


def known_rules() -> dict[str, ModuleType]:
    """The files of published/rules, by name; each offers TITLE and check(corpus)."""
    names = sorted(info.name for info in pkgutil.iter_modules(rules.__path__))
    return {name: importlib.import_module(f"{rules.__name__}.{name}") for name in names}


def audit(claims: Sequence[Claim]) -> list[Finding]:
    """The findings, surest first, then by rule and place."""
    corpus = Corpus(tuple(claims))
    found = [
        dataclasses.replace(finding, rule=name)
        for name, module in known_rules().items()
        for finding in module.check(corpus)
    ]
    order = list(Certainty)
    return sorted(found, key=lambda f: (order.index(f.certainty), f.rule, f.where))


def render(findings: Sequence[Finding], claims: Sequence[Claim]) -> str:
    """The findings as a Markdown page."""
    results = Counter(claim.source_file for claim in claims if claim.kind == "result")
    counts = Counter(finding.certainty for finding in findings)
    lines = [
        "# Do the published numbers agree with each other?",
        "",
        "Each finding below follows from the printed text by arithmetic that can be repeated by hand; places",
        "are given as file:line. General rules produced them, the same for every source. A finding says that",
        "two texts do not fit together; it does not say which one is right, nor why. Corrections are "
        "welcome.",
        "",
        f"Rates are held against times under one formula: {FORMULA}. It leaves the shape constant",
        "K = heads × head size × (½ when causal) ÷ ranks = rate × time ÷ (4 b S² × phase factor), and "
        "rows of one",
        "table share one K. A printed number stands for the interval that its digits leave open.",
        "",
        "| certainty | meaning | findings |",
        "|---|---|---|",
        *(f"| {each.value} | {_MEANING[each]} | {counts[each]} |" for each in Certainty),
        "",
        "| source | result numbers and status words |",
        "|---|---|",
        *(f"| {name} | {number} |" for name, number in results.items()),
        "",
    ]
    titles = {name: module.TITLE for name, module in known_rules().items()}
    number = 0
    for certainty in Certainty:
        chosen = [finding for finding in findings if finding.certainty is certainty]
        if chosen:
            lines += [f"## {certainty.value.capitalize()}", ""]
        for finding in chosen:
            number += 1
            lines += [
                f"### {number}. {finding.what}",
                "",
                f"- rule: {titles[finding.rule]}",
                f"- where: {_places(finding.where)}",
                f"- arithmetic: {finding.arithmetic}",
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


def _places(where: Sequence[str]) -> str:
    """file:line, a file's name once for all of its lines."""
    files: dict[str, list[str]] = {}
    for place in where:
        name, _, line = place.rpartition(":")
        files.setdefault(name, [])
        if line not in files[name]:
            files[name].append(line)
    return "; ".join(f"`{name}`:{', '.join(lines)}" for name, lines in files.items())
