"""Tolerances as data: how far from a published number a measured one may be and still reproduce it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ringmark import schema, yamlfile

METRICS = ("time", "rate", "throughput", "memory", "ratio")


@dataclass(frozen=True)
class Tolerance:
    """From target * (1 + low) to target * (1 + high)."""

    low: float
    high: float
    unit: str = "relative"

    def __post_init__(self) -> None:
        if not self.low <= 0 <= self.high or self.unit != "relative":
            raise ValueError("a tolerance has low <= 0 <= high and the unit relative")

    def band(self, low: float, high: float) -> tuple[float, float]:
        """The accepted values around a printed interval."""
        return low * (1 + self.low), high * (1 + self.high)


@dataclass(frozen=True)
class Tolerances:
    """What results/published/tolerances.yaml holds."""

    metrics: dict[str, Tolerance]
    claims: dict[str, Tolerance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for metric in METRICS:
            if metric not in self.metrics:
                raise ValueError(f"metrics lacks {metric}: add it with low, high and unit")

    def of(self, metric: str, claim_id: str) -> Tolerance:
        return self.claims.get(claim_id, self.metrics[metric])


def read_tolerances(path: Path) -> Tolerances:
    return schema.load(Tolerances, yamlfile.read(path, "tolerances"), str(path))
