"""``dagster_ckpt.core.checkpoint.requests`` under its former name, with the former name of ``QueueLoad``."""

import sys

from dagster_ckpt.core.checkpoint import requests

requests.Load = requests.QueueLoad  # type: ignore[attr-defined]
sys.modules[__name__] = requests
