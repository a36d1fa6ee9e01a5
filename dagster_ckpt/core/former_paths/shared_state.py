"""``dagster_ckpt.core.files.shared_state`` under its former name."""

import sys

from dagster_ckpt.core.files import shared_state

sys.modules[__name__] = shared_state
