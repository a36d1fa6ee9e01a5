import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from dagster_ckpt.sinks import SinkContext, SinkPosition, SinkTarget, StagedRows, StagedSink


@dataclass(frozen=True, slots=True)
class JsonLines(SinkTarget):
    opened_by: ClassVar[str] = "json_lines:JsonLinesSink"
    folder: str

    @classmethod
    def at(cls, place: str) -> "JsonLines":
        return cls(place.removeprefix("json-lines:"))


class JsonLinesSink(StagedSink):
    kind = "json-lines"

    def __init__(self, target: JsonLines, context: SinkContext) -> None:
        super().__init__(context)
        self.folder = Path(target.folder)

    @property
    def place(self) -> str:
        return f"json-lines:{self.folder}"

    def position(self) -> SinkPosition | None:
        files = sorted(self.folder.glob("*.jsonl"))
        if not files:
            return None
        with files[-1].open() as file:  # the first line of the newest file
            return SinkPosition(**json.loads(file.readline()))

    def commit(self, rows: StagedRows, position: SinkPosition) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self.folder.glob("*.jsonl")))
        lines = [asdict(position)]
        for batch in rows.reader():
            lines.extend(batch.to_pylist())
        hidden = self.folder / ".writing"
        hidden.write_text("".join(json.dumps(line) + "\n" for line in lines))
        hidden.rename(self.folder / f"{number:08d}.jsonl")  # rows and position appear in one step
        return str(number)
