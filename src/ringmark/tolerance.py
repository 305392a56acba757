"""What an answer may be wrong by: formulas that the measurement and the check of a campaign share."""

from __future__ import annotations

import math

# A gap is normal with the answer's own error for its deviation, which is at most what is allowed of a tensor:
# this many deviations, for the largest of some dozen heads.
BALANCE_FACTOR = 4.0


def balance_allowed(*allowed: float) -> float:
    """What two sums may differ by, from what is allowed of the tensors on either side."""
    return BALANCE_FACTOR * math.hypot(*allowed)
