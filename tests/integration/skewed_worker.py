"""The slow worker on a host whose clock is `SKEW_SECONDS` ahead of the others'."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import app.db.base as base

SKEW_SECONDS = float(os.environ["SKEW_SECONDS"])
right_now, right_time = base.utc_now, time.time
# Before anything else is imported: what reads the clock takes these functions by name.
base.utc_now = lambda: right_now() + timedelta(seconds=SKEW_SECONDS)
time.time = lambda: right_time() + SKEW_SECONDS

if __name__ == "__main__":
    import runpy

    runpy.run_module("tests.integration.slow_worker", run_name="__main__")
