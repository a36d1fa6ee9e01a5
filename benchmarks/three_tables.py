"""A reader that compares sums over three tables while the processes that write them are killed: none may be mixed.

    python -m benchmarks.three_tables [--reads 10000] [--kills 100] [--of "delta, sql, iceberg" ...] [--seed 0]

Each writer is a process of its own, ended by SIGKILL wherever it is, and refuses one publish in eight. Its tables are
read by ``load_tables``; those of one database, or of one catalog, as they are now, too. Ends with 1 where two
checkpoints were mixed, or one that was shown was followed by an older one.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pyiceberg.table import StaticTable

from benchmarks.common import scratch
from dagster_ckpt.adapters.fsspec_storage import open_storage
from dagster_ckpt.adapters.sql_store import SqlCoordinatorStore
from dagster_ckpt.errors import Corrupt, NotFound, Unavailable
from dagster_ckpt.spark.attempt import sinks
from dagster_ckpt.spark.files import replace_whole
from tests.operations.readers.three_tables import SINKS, Faults, Process, Shop, pipeline_in, sums_of

KILLS_OF_A_FOLDER = 10
"""After so many the next tables are begun, whose history is short."""


@dataclass(frozen=True)
class Read:
    """What was found: the checkpoint, where the reader is told of it, and the sum of each table."""

    checkpoint: int | None
    sums: dict[str, int]


Reader = Callable[[Shop], Read | None]
"""Returns None where there is nothing to read yet."""


class SumsInFolder(MutableMapping[int, int]):
    """The sum of each checkpoint, a file each: writers are killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def __getitem__(self, number: int) -> int:
        return int((self.folder / str(number)).read_text()) if number else 0

    def __setitem__(self, number: int, total: int) -> None:
        replace_whole(self.folder / str(number), str(total).encode())

    def __delitem__(self, number: int) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return iter([0, *(int(path.name) for path in self.folder.glob("[0-9]*"))])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def shop_in(folder: Path, places: Sequence[str], attempts: int = 0) -> Shop:
    """Open what outlives processes, of which there were so many."""
    store = SqlCoordinatorStore(f"sqlite:///{folder}/store.db")
    return Shop(
        folder,
        pipeline_in(folder, places),
        store=store,
        storage=open_storage(str(folder / "checkpoints")),
        sums=SumsInFolder(folder / "sums"),
        attempts=attempts,
    )


def write(folder: Path, places: Sequence[str], attempts: int, seed: int) -> None:
    """Take checkpoints until the process is killed."""
    logging.disable(logging.CRITICAL)
    faults = Faults(Random(seed), refuse_one_in=8)
    refused = faults.around(sinks.publish_prepared)  # type: ignore[attr-defined]
    sinks.publish_prepared = refused  # type: ignore[attr-defined]
    process = Process(shop_in(folder, places, attempts))
    while True:
        process.checkpoint(process.next_batch % 11 + 1)
        process.collect_garbage()


# --- readers ----------------------------------------------------------------------------------------------------------


def by_pointer(shop: Shop) -> Read | None:
    """Read all tables as of the newest checkpoint that every one shows."""
    try:
        loaded = shop.load()
    except (NotFound, Unavailable):  # nothing is shown yet, or the catalog is being made
        return None
    try:
        return Read(loaded.checkpoint_id, sums_of(loaded))
    except Corrupt:
        if shop.load().checkpoint_id == loaded.checkpoint_id:
            raise
        return None  # what was loaded went with a newer checkpoint, before it was read


def of_one_database(shop: Shop) -> Read | None:
    """Ask the database, in one transaction, as anybody would."""
    with closing(sqlite3.connect(shop.folder / "shop.db", timeout=60)) as connection:
        connection.execute("BEGIN")
        try:
            found = {
                table: connection.execute(f"SELECT coalesce(sum(v), 0) FROM {table}").fetchone()[0]
                for table in SINKS
            }
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return None
            raise
    return Read(None, found)


def of_one_catalog(shop: Shop) -> Read | None:
    """Ask the catalog once where its tables are, and read them there."""
    with closing(sqlite3.connect(shop.folder / "catalog.db", timeout=60)) as connection:
        try:
            asked = connection.execute("SELECT table_name, metadata_location FROM iceberg_tables").fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return None
            raise
    if {name for name, _ in asked} != {*SINKS}:
        return None
    return Read(None, {name: _sum_at(location) for name, location in asked})


def _sum_at(location: str) -> int:
    rows = StaticTable.from_metadata(location).scan(selected_fields=("v",)).to_arrow()
    return sum(rows["v"].to_pylist())


MIXTURES: dict[str, tuple[tuple[str, str, str], Reader]] = {
    "delta, iceberg, sql": (("delta", "iceberg", "sql"), by_pointer),
    "delta, delta, sql": (("delta", "delta", "sql"), by_pointer),
    "one database, as it is now": (("sql", "sql", "sql"), of_one_database),
    "one catalog, as it is now": (("iceberg", "iceberg", "iceberg"), of_one_catalog),
}


# --- the trial --------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was read of one mixture."""

    reads: int = 0
    kills: int = 0
    checkpoints: set[tuple[int, int]] = field(default_factory=set)
    """Those that were found, by folder."""
    mixed: list[str] = field(default_factory=list)
    back: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.reads:,} reads of {len(self.checkpoints):,} checkpoints, {self.kills} kills: "
            f"{len(self.mixed)} mixed, {len(self.back)} went back"
        )


class Trial:
    """Tables in one folder, one writer after the other, and a reader that does not stop."""

    def __init__(self, folder: Path, places: Sequence[str], reader: Reader, random: Random) -> None:
        self.folder, self.places, self.reader, self.random = folder, places, reader, random
        folder.mkdir()
        SqlCoordinatorStore(f"sqlite:///{folder}/store.db").migrate()
        self.shop = shop_in(folder, places)
        self.newest = 0

    def run(self, tally: Tally, reads: int) -> None:
        """Read at least so often while one writer works, and kill it."""
        context = multiprocessing.get_context("forkserver")
        told = (self.folder, self.places, tally.kills, self.random.randrange(2**30))
        writer = context.Process(target=write, args=told, daemon=True)
        writer.start()
        begun, seen = tally.reads, len(tally.checkpoints)
        most = self.random.randint(reads // 2, reads * 3 // 2)
        while tally.reads - begun < most or len(tally.checkpoints) <= seen:
            self._read(tally)
            if writer.exitcode is not None:
                raise RuntimeError(f"the writer has ended by itself: {writer.exitcode}")
        time.sleep(self.random.random() / 10)
        writer.kill()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL
        tally.kills += 1

    def _read(self, tally: Tally) -> None:
        found = self.reader(self.shop)
        if found is None:
            time.sleep(0.01)
            return
        tally.reads += 1
        totals = {*found.sums.values()}
        known = [*self.shop.sums.values()] if found.checkpoint is None else [self.shop.sums[found.checkpoint]]
        if len(totals) != 1 or totals.isdisjoint(known):
            tally.mixed.append(str(found))
        at = found.checkpoint or max(totals)
        if at < self.newest:
            tally.back.append(f"{found} after {self.newest}")
        self.newest = at
        tally.checkpoints.add((id(self), at))


def tried(places: Sequence[str], reader: Reader, *, reads: int, kills: int, seed: int) -> Tally:
    """Read so often, through so many kills."""
    tally, random = Tally(), Random(seed)
    while tally.reads < reads or tally.kills < kills:
        with scratch() as folder:
            trial = Trial(folder / "shop", places, reader, random)
            for _ in range(KILLS_OF_A_FOLDER):
                trial.run(tally, -(-reads // kills))
        print(f"  so far {tally}", flush=True)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reads", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--of", nargs="*", choices=MIXTURES, default=[*MIXTURES])
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    multiprocessing.set_forkserver_preload(["tests.operations.readers.three_tables"])
    is_wrong = False
    for name in given.of:
        places, reader = MIXTURES[name]
        tally = tried(places, reader, reads=given.reads, kills=given.kills, seed=given.seed)
        wrong = [*tally.mixed, *tally.back]
        is_wrong |= bool(wrong)
        print(
            f"{name}: {tally}",
            *wrong[:5],
            sep="\n  ",
            flush=True,
        )
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
