"""Audit: who restored, forked and disposed of what, with the preview as it was then."""

from __future__ import annotations

from dagster_ckpt.core.ids import PipelineId
from dagster_ckpt.operations.deployment import Deployment
from dagster_ckpt.ports import AuditRow
from dagster_ckpt.runtime.audit import Operator

__all__ = ["AuditRow", "Operator", "audit_of"]


def audit_of(deployment: Deployment, pipeline: PipelineId, *, limit: int = 50) -> list[AuditRow]:
    """Return the deeds of people on a pipeline, newest first. Raises Unavailable."""
    return deployment.store.audited(pipeline, limit=limit)
