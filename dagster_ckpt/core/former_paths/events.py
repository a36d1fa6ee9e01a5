"""``dagster_ckpt.core.coordinator.events`` under its former name."""

import sys

from dagster_ckpt.core.coordinator import events

sys.modules[__name__] = events
