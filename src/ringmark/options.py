"""What a method's options may be: one law, for a plan (without torch) and for the method itself.

    default_options = {"wire": "auto", "head_groups": 0}
    choices = {"wire": ("auto", "native", "float32")}

An option is one of its choices; one without choices is a whole number, 0 or more. A class adds to what the
class above it says. Both are literals, or constants of the same file, so that a plan can read them from it
(catalog.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringmark.cell import OptionValue, option_text
from ringmark.errors import nearest


@dataclass(frozen=True)
class Options:
    """The options of one method."""

    defaults: Mapping[str, OptionValue] = field(default_factory=dict)
    choices: Mapping[str, tuple[OptionValue, ...]] = field(default_factory=dict)

    def below(self, other: Options) -> Options:
        """These, with what a derived class says laid over them."""
        return Options({**self.defaults, **other.defaults}, {**self.choices, **other.choices})

    def reason_not(self, method: str, given: Mapping[str, object]) -> str | None:
        """Why a method cannot be given these values, or None."""
        for name, value in given.items():
            if name not in self.defaults:
                known = nearest(name, self.defaults) if self.defaults else "it has none"
                return f"{method} has no option {name!r}: {known}"
            reason = self._reason_not(name, value)
            if reason:
                return f"{name} is {option_text(value)}: {reason}"
        return None

    def _reason_not(self, name: str, value: object) -> str | None:
        choices = self.choices.get(name)
        if choices is None:
            least = "0 for automatic" if self.defaults[name] == 0 else "1 or more"
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            return None if is_count else f"give a whole number, {least}"
        # true is 1 to Python, and another word in a path
        if any(type(value) is type(choice) and value == choice for choice in choices):
            return None
        return f"choose one of {', '.join(map(option_text, choices))}"
