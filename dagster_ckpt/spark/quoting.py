"""A name as Spark's SQL reads it, whatever is in it."""

__all__ = ["quoted"]


def quoted(name: str) -> str:
    """Return a column's or a table's name in backticks: without them a dot would reach into a struct."""
    return f"`{name.replace('`', '``')}`"
