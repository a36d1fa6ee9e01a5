"""Variables of ``transformWithState``: one that was renamed would begin empty, and Spark does not say so.

Their names are in no plan. Spark writes those of each run beside the state when it plans the first batch, before a row
of it is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest

__all__ = ["refuse_renamed_variables"]


def refuse_renamed_variables(query_dir: Path, batch_id: int) -> None:
    """Raise InvalidRequest where variables of state are gone and others are new: they may be the same.

    ``batch_id``: the query's first batch in this run, in which this is asked. Whose query it is, is told with what
    ends it.
    """
    for folder in sorted((query_dir / "state").glob("*/_metadata/v2")):
        written = folder / str(batch_id)
        earlier = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
        earlier = [number for number in earlier if number < batch_id]
        if not earlier or not written.exists():
            continue
        before, now = _variables(folder / str(max(earlier))), _variables(written)
        gone, new = sorted(before - now), sorted(now - before)
        if gone and new:
            written.unlink()  # Spark keeps what is there: the names would be these, also once they are changed back
            raise InvalidRequest(
                f"the variables of its state have changed: it was kept in {', '.join(gone)}, and its processor has "
                f"{', '.join(new)} instead, which would begin empty. Change the names back; or add the new variables, "
                "run once, and take the old ones away then"
            )


def _variables(metadata: Path) -> set[str]:
    """Return the variables that an operator's metadata names; none for operators without any."""
    lines = metadata.read_text(encoding="utf-8").splitlines()
    document: Any = parse_json(lines[-1]) if len(lines) > 1 else {}
    properties: Any = parse_json(document.get("operatorPropertiesJson") or "{}")
    return {str(one["stateName"]) for one in properties.get("stateVariables", ())}
