"""``dagster_ckpt.core.files.cleaning`` under its former name."""

import sys

from dagster_ckpt.core.files import cleaning

sys.modules[__name__] = cleaning
