"""Digests of stage functions: a plan does not show what a user's Python code does with a row."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

UNREADABLE = "unreadable"
"""Digest of a function that closes over something that cannot be looked at; it is never the same."""
MADE_FROM = "made_from"
"""Attribute of a front end's function: digests of the files that say what it does, which its own code does not."""
_LINES = 20_000
"""Lines of text that count, so that a start does not wait for a module that holds a million values."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def digest_of(function: Callable[..., Any]) -> str:
    """Return a digest of a function's code, of what it closes over, and of what it calls in its own package.

    Behind the version of Python whose byte code it is of (``3.11:…``). Objects that are no plain values count by their
    type only: nothing is called, and nothing of a session or a client is looked at. ``UNREADABLE`` where that fails.
    """
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    own = getattr(function, MADE_FROM, None)
    try:
        text = "\n".join(islice(_said(own or function, package, set()), _LINES))
    except Exception:  # a user's object that cannot be looked at: no start may fail for it
        return UNREADABLE
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{version}:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def may_mean_another(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the stages whose code is another one than it was, those of byte code that cannot be compared included."""
    return sorted(
        uid
        for uid, digest in now.items()
        if uid in before and (before[uid] != digest or digest == UNREADABLE)
    )


def _said(thing: Any, package: str, seen: set[int]) -> Iterator[str]:
    """Yield lines that say a value, the same in every process."""
    inner = _wrapped(thing)
    if inner is not None:
        yield type(thing).__name__
        if isinstance(thing, partial):
            for given in (thing.args, thing.keywords):
                yield from _said(given, package, seen)
        thing = inner
    if isinstance(thing, _PLAIN):
        yield repr(thing)
    elif id(thing) in seen:
        yield "again"
    elif isinstance(thing, FunctionType | type):
        seen.add(id(thing))
        yield from _defined(thing, package, seen)
    elif isinstance(thing, Mapping):
        seen.add(id(thing))
        for key in sorted(thing, key=repr):
            yield from (*_said(key, package, seen), *_said(thing[key], package, seen))
    elif isinstance(thing, Set):
        yield from sorted("".join(_said(one, package, seen)) for one in thing)
    elif isinstance(thing, list | tuple):
        seen.add(id(thing))
        for one in thing:
            yield from _said(one, package, seen)
    else:
        yield thing.__name__ if isinstance(thing, ModuleType) else type(thing).__qualname__


def _wrapped(thing: Any) -> Any:
    """Return the function in a decorated one, in a user-defined function of Spark's, or in a partial; else None."""
    if isinstance(thing, partial):
        return thing.func
    own = None if isinstance(thing, type) else getattr(thing, "__dict__", None)
    found = own.get("__wrapped__", own.get("func")) if isinstance(own, Mapping) else None
    return found if isinstance(found, FunctionType) else None


def _defined(thing: FunctionType | type, package: str, seen: set[int]) -> Iterator[str]:
    """Yield the code of a function or a class of the user's own package, however its file is called; else the name."""
    top, _, inner = str(thing.__module__).partition(".")
    yield f"{inner if top == package else thing.__module__}.{thing.__qualname__}"
    if top != package:
        return
    if isinstance(thing, type):
        for name, member in sorted(vars(thing).items()):
            if isinstance(member, (FunctionType, *_PLAIN)) and name not in ("__module__", "__doc__"):
                yield from (name, *_said(member, package, seen))
        return
    yield from _written(thing.__code__, thing.__doc__)
    # A list made here would lend its id to the next one.
    for given in (thing.__defaults__, thing.__kwdefaults__):
        yield from _said(given, package, seen)
    for cell in thing.__closure__ or ():
        yield from _said(_content(cell), package, seen)
    for name in _global_names(thing.__code__):
        if name in thing.__globals__:
            yield from (name, *_said(thing.__globals__[name], package, seen))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _written(code: CodeType, doc: str | None = None) -> Iterator[str]:
    yield code.co_code.hex()
    yield " ".join((*code.co_names, *code.co_varnames))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _written(constant)
        elif constant not in (doc, None):  # in the place of a docstring that there is not is None
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
