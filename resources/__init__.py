"""The reference deployment's resources, configured. Their classes live in ``dagster_ckpt/dagster/resources/``."""

import sys
from pathlib import Path

from assets.flights import DEMO_DIR
from dagster_ckpt import CheckpointCoordinatorResource, SparkSessionResource

# Nothing here is secret. A password or key would be named, not written: store_url=dg.EnvVar("CHECKPOINT_STORE_URL").
# Dagster records the settings of resources with every run (docs/how-to/deploy.md#secrets).
COORDINATOR = CheckpointCoordinatorResource(
    base_dir=str(DEMO_DIR), table_dir=str(DEMO_DIR / "tables"), tolerable_failed_checkpoints=3, num_retained=3
)
CLASS_ARCHIVE = Path(sys.prefix) / "class-archive"  # made by scripts/bootstrap class_archive
SPARK = SparkSessionResource(
    app_name="flights",
    class_archive=str(CLASS_ARCHIVE) if CLASS_ARCHIVE.is_dir() else "",
    warm_engine=str(DEMO_DIR / "engine"),  # a JVM that the next run finds warm; it ends with nobody to use it
    warm_engine_idle="2 min",
    conf={
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "ERROR",
    },
)
