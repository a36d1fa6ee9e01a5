"""Which columns can be a key: their values are compared when the last row of each key is kept."""

from __future__ import annotations

from collections.abc import Sequence

from dagster_ckpt.core.json_text import parse_json
from dagster_ckpt.errors import InvalidRequest


def refuse_nested_key(where: str, schema: str, key: Sequence[str]) -> None:
    """Raise InvalidRequest for a key whose values nothing can compare: its rows could not be published any more.

    ``schema``: Spark's, as JSON.
    """
    for field in parse_json(schema)["fields"]:
        kind = field["type"]
        if field["name"] in key and (isinstance(kind, dict) or kind == "variant"):
            text = kind["type"] if isinstance(kind, dict) else kind
            raise InvalidRequest(
                f"{where}: the key column {field['name']!r} is of type {text}, whose values cannot be compared: use "
                "plain columns (numbers, text, dates), such as its parts or to_json of it. Rows staged with it are "
                "left behind by restore_from an earlier snapshot, or 'none'"
            )
