"""Plain values go to Java without every converter of PySpark being asked about them.

PySpark asks its converters about each argument of each call. The first one, for NumPy's arrays, imports PySpark's test
tools to do so, and with them pandas and gRPC (4.3): half a second of every start.
"""

from __future__ import annotations

from functools import cache
from typing import Any

_AS_THEY_ARE = frozenset({bool, int, float, str, bytes, bytearray, type(None)})


class PlainArguments:
    """A converter of py4j for values that no converter of PySpark takes, and for Python's own collections."""

    def can_convert(self, value: object) -> bool:
        """Say whether the value is one of these; only exactly, a subclass may be meant for another converter."""
        kind = type(value)
        return kind in _AS_THEY_ARE or kind in _collections() or hasattr(kind, "Java")

    def convert(self, value: Any, gateway: Any) -> Any:
        """Return a collection of Java for a collection, and everything else as it is."""
        converter = _collections().get(type(value))
        return value if converter is None else converter.convert(value, gateway)


def convert_plain_arguments_first() -> None:
    """Let py4j ask about plain values first, where nobody else has asked to be the first."""
    from py4j.protocol import INPUT_CONVERTER, register_input_converter
    from pyspark.sql import types

    theirs = getattr(types, "NumpyArrayConverter", None)
    if theirs is not None and INPUT_CONVERTER and type(INPUT_CONVERTER[0]) is theirs:
        register_input_converter(PlainArguments(), prepend=True)


@cache
def _collections() -> dict[type, Any]:
    """Return py4j's converters of Python's collections, made once: they are asked for with every argument."""
    from py4j.java_collections import ListConverter, MapConverter, SetConverter

    each, pairs, single = ListConverter(), MapConverter(), SetConverter()
    return {list: each, tuple: each, dict: pairs, set: single, frozenset: single}
