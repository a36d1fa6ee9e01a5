"""Runs the same work on many files at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["run_in_parallel"]

T = TypeVar("T")


def run_in_parallel(work: Callable[[T], None], items: Sequence[T], *, parallelism: int) -> None:
    """Do ``work`` on every item and return when all of it has ended.

    After the first failure no further item begins, and that failure is raised: nothing still runs then.
    """
    failed: list[BaseException] = []

    def one(item: T) -> None:
        if failed:
            return
        try:
            work(item)
        except BaseException as error:
            failed.append(error)

    threads = min(parallelism, len(items))
    if threads <= 1:
        for item in items:
            one(item)
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="ckpt-files") as pool:
            for item in items:
                pool.submit(one, item)
    if failed:
        raise failed[0]
