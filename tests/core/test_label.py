"""Name, labels and note travel as one value, and are stored flat, as they always were."""

from __future__ import annotations

from dagster_ckpt.core.checkpoint.record import MailRecord, TriggerRecord
from dagster_ckpt.core.model import LabelChanges, SnapshotLabel
from dagster_ckpt.core.request import CheckpointRequest

LABEL = SnapshotLabel(name="before", labels={"ticket": "118"}, note="Spark 4.3 to 4.4")


def test_a_label_survives_request_mail_and_trigger() -> None:
    request = CheckpointRequest(**LABEL.fields())
    mail = MailRecord(request_id="ask", kind=request.kind, sent_at=1.0, **request.label.fields())
    trigger = TriggerRecord(periodic=False, **mail.label.fields())
    assert request.label == mail.label == trigger.label == LABEL


def test_records_keep_their_flat_fields() -> None:
    stored = TriggerRecord(periodic=False, **LABEL.fields()).model_dump(mode="json")
    assert stored == {
        "periodic": False,
        "name": "before",
        "labels": {"ticket": "118"},
        "note": "Spark 4.3 to 4.4",
        "request_id": "",
    }
    assert list(stored) == ["periodic", "name", "labels", "note", "request_id"]


def test_a_copy_says_only_what_is_given_differently_and_adds_its_labels() -> None:
    assert LabelChanges().applied_to(LABEL) == LABEL
    changed = LabelChanges(name="", labels={"why": "move"}).applied_to(LABEL)
    assert changed == SnapshotLabel(name="", labels={"ticket": "118", "why": "move"}, note="Spark 4.3 to 4.4")
