"""A name or a text as Spark's SQL reads it, whatever is in it."""


def quoted(name: str) -> str:
    """Return a column's or a table's name in backticks: without them a dot would reach into a struct."""
    return f"`{name.replace('`', '``')}`"


def text_literal(text: str) -> str:
    """Return a text in quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
