"""``python -m examples.clickstream [BROKER]``: clicks arrive, a bad day is taken back with its tables; all checked.

Without a broker's address a Kafka is started in a temporary folder and stopped at the end.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dagster_ckpt import (
    CheckpointCoordinatorResource,
    CheckpointedPipeline,
    SparkSessionResource,
    load_table,
    run_epoch,
)
from examples.clickstream.pipeline import TOPIC, clickstream
from tests.adapters.servers import kafka_broker, spark_kafka_jars

Click = tuple[str, str, datetime]
GAP = timedelta(minutes=30)
MORNING = datetime(2026, 3, 2, 8, tzinfo=UTC)
USERS, CLICKS = 40, 4000


def main(folder: Path, broker: str) -> None:
    """Run it, and raise AssertionError where a table is not what the clicks say."""
    pipeline = clickstream(broker)
    coordinator = CheckpointCoordinatorResource(base_dir=str(folder))
    day = made_up_day()
    put(broker, day[: CLICKS // 2])
    first = run(pipeline, coordinator)
    print(f"checkpoint {first}: {CLICKS // 2} clicks of the morning")
    robot = [(f"robot-{n % 3}", "/prices", at) for n, (_, _, at) in enumerate(day[CLICKS // 2 :])]
    put(broker, robot)
    print(f"checkpoint {run(pipeline, coordinator)}: a robot's {len(robot)} clicks are counted")
    check(pipeline, coordinator, [*day[: CLICKS // 2], *robot])

    # In earnest one would delete the robot's records first; here they are read again, from where the snapshot was.
    put(broker, day[CLICKS // 2 :])
    again = run(pipeline, coordinator, restore_from=f"chk-{first}")
    print(f"checkpoint {again}: taken back to checkpoint {first}, and read on from its offsets")
    put(broker, [("nobody", "/end", MORNING + timedelta(days=2))])
    print(f"checkpoint {run(pipeline, coordinator)}: a click two days later; all sessions before it are over")
    clicks = [*day[: CLICKS // 2], *robot, *day[CLICKS // 2 :]]
    check(pipeline, coordinator, [*clicks, ("nobody", "/end", MORNING + timedelta(days=2))])
    over = sessions_of(clicks)
    assert rows(pipeline, coordinator, "sessions") == over, "sessions differ from the truth"
    print(f"sessions: {sum(over.values())} rows, equal to the truth")


def run(pipeline: CheckpointedPipeline, coordinator: CheckpointCoordinatorResource, **restore: str) -> int:
    """Run an epoch; return its checkpoint's id."""
    spark = SparkSessionResource(
        master="local[2,3]",
        conf={
            "spark.jars": ",".join(map(str, spark_kafka_jars())),
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
            "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    end = run_epoch(pipeline, coordinator=coordinator, spark=spark, restore=restore)
    assert end.checkpoint is not None
    return int(end.checkpoint.uri.rpartition("chk-")[2])


def check(
    pipeline: CheckpointedPipeline, coordinator: CheckpointCoordinatorResource, clicks: Sequence[Click]
) -> None:
    """Compare the page counts with all clicks that were put."""
    views = Counter(page for _, page, _ in clicks)
    assert rows(pipeline, coordinator, "pages") == Counter(dict(views)), "pages differ from the truth"
    print(f"pages: {len(views)} rows, equal to the truth")


def rows(
    pipeline: CheckpointedPipeline, coordinator: CheckpointCoordinatorResource, table: str
) -> Counter[Any]:
    """Return a table as what its rows say, counted."""
    found = load_table(pipeline, table, coordinator=coordinator).to_arrow().to_pylist()
    if table == "pages":
        return Counter({row["page"]: row["views"] for row in found})
    return Counter((row["user"], row["began"].replace(tzinfo=UTC), row["clicks"]) for row in found)


# --- clicks, and the truth about them ---------------------------------------------------------------------------


def made_up_day() -> list[Click]:
    """Clicks of a day in order, the same each time."""
    dice = random.Random(7)
    seconds = sorted(dice.sample(range(16 * 3600), CLICKS))
    return [
        (f"user-{dice.randrange(USERS)}", f"/page-{dice.randrange(12)}", MORNING + timedelta(seconds=second))
        for second in seconds
    ]


def sessions_of(clicks: Sequence[Click]) -> Counter[tuple[str, datetime, int]]:
    """Return (user, beginning, clicks) of every session."""
    found: Counter[tuple[str, datetime, int]] = Counter()
    for user in {user for user, _, _ in clicks}:
        moments = sorted(at for who, _, at in clicks if who == user)
        began, last, count = moments[0], moments[0], 0
        for at in moments:
            if at - last >= GAP:
                found[user, began, count] += 1
                began, count = at, 0
            last, count = at, count + 1
        found[user, began, count] += 1
    return found


def put(broker: str, clicks: Sequence[Click]) -> None:
    """Send clicks, keyed by user: a user's stay in order."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for user, page, at in clicks:
        producer.produce(
            TOPIC, key=user, value=json.dumps({"user": user, "page": page, "at": at.isoformat()})
        )
    producer.flush()


@contextmanager
def broker_at(address: str) -> Iterator[str]:
    """Yield the address, or that of a Kafka of one's own."""
    if address:
        yield address
        return
    with kafka_broker() as broker:
        yield broker.address


if __name__ == "__main__":
    with (
        broker_at(" ".join(sys.argv[1:])) as chosen,
        tempfile.TemporaryDirectory(prefix="clickstream-") as scratch,
    ):
        main(Path(scratch), chosen)
