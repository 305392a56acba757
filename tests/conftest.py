"""What all tests share: hypothesis without a clock (the machine may be busy), torch on one thread."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ringmark", deadline=None, max_examples=60)
settings.load_profile("ringmark")

# What a shell may have set for others: in a hook git says which repository is meant, and a test's `git add`
# would go there; an allocation has its ids; who uses Snakemake has a profile.
for name in [*os.environ]:
    if name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE") or name.startswith(("SLURM_", "SNAKEMAKE_")):
        del os.environ[name]

try:
    import torch
except ImportError:  # the tables' tests run without it
    pass
else:
    # Before the first parallel region: the worlds of world.py are forked, and threads do not survive a fork.
    torch.set_num_threads(1)
