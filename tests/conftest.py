"""What all tests share: hypothesis without a clock (the machine may be busy), torch on one thread."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ringmark", deadline=None, max_examples=60)
settings.load_profile("ringmark")

try:
    import torch
except ImportError:  # the tables' tests run without it
    pass
else:
    # Before the first parallel region: the worlds of world.py are forked, and threads do not survive a fork.
    torch.set_num_threads(1)
