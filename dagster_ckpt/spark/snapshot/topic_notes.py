"""Note of a stage's directory: which topics its positions are in. A topic's name is also that of one made later."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.spark.directories import StageDirectory
from dagster_ckpt.spark.files import replace_whole

__all__ = ["note_topic_ids", "noted_topic_ids"]


def note_topic_ids(directory: StageDirectory, ids: Mapping[str, str]) -> None:
    """Write down the topics' ids, for the snapshots of this stage."""
    if ids and ids != noted_topic_ids(directory):
        replace_whole(directory.topics, json.dumps(dict(sorted(ids.items()))).encode())


def noted_topic_ids(directory: StageDirectory) -> dict[str, str]:
    """Return the topic ids that were noted; empty: none were."""
    try:
        found = parse_json(directory.topics.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return {str(topic): str(number) for topic, number in found.items()} if isinstance(found, dict) else {}
