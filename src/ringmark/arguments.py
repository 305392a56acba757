"""Numbers on the command line: what is below its least is a mistake there, and never means the default."""

from __future__ import annotations

import argparse
import math


def count(text: str) -> int:
    """A whole number, 1 or more."""
    return _whole(text, 1)


def index(text: str) -> int:
    """A whole number, 0 or more."""
    return _whole(text, 0)


def positive(text: str) -> float:
    """A number above 0."""
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0")
    return number


def duration(text: str) -> float:
    """Seconds, 0 or more."""
    number = _number(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give seconds, 0 or more")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{text}: give a whole number of at least {least}")
    return number
