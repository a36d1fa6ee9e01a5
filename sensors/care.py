"""Owners, alarms, restarts and nightly savepoints of the flights pipeline."""

import json
import time
from datetime import timedelta

from assets.flights import DEMO_DIR
from dagster_ckpt import AlarmMessage, PipelineOptions, RestartPolicy, SavepointSchedule


def write_alarm(message: AlarmMessage) -> None:
    """Append an alarm to ``.demo/alarms.jsonl``: put a call to your chat or pager here."""
    line = {"at": time.time(), "text": message.text, "run": message.run_link, "checks": message.checks_link}
    DEMO_DIR.mkdir(parents=True, exist_ok=True)
    with (DEMO_DIR / "alarms.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


OPTIONS = {
    "flights": PipelineOptions(
        owners=["team:flights"],
        tables="materializable",
        table_freshness=timedelta(days=2),
        max_checkpoint_age=timedelta(days=2),
        alarm_after_failures=2,
        notify=write_alarm,
        restart=RestartPolicy(max_restarts=3, delay=10.0),
        savepoints=SavepointSchedule(
            cron_schedule="0 3 * * *", keep_last=7, keep_for=timedelta(days=30), note="nightly"
        ),
    )
}
