"""``dagster_ckpt.testing.coordinator.harness`` under its former name."""

import sys

from dagster_ckpt.testing.coordinator import harness

sys.modules[__name__] = harness
