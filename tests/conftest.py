"""What holds for every test: set before torch is imported, and inherited by the processes that tests start."""

from __future__ import annotations

import os

# The models are tiny: more threads only wait for each other, and for the other processes on the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# transformers and timm build models from configurations; no test loads weights.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A check that a test starts runs, and leaves nothing in the cache of who runs the tests. tests/test_cache.py has its own.
os.environ["DDPLINT_NO_CACHE"] = "1"
# What a report looks like is asked for test by test, not taken from who runs them.
for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
    os.environ.pop(name, None)
