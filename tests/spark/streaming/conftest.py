"""A lab for streams; the session is shared by the whole test process."""

from tests.lab.lab import lab

__all__ = ["lab"]
