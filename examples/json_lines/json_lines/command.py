"""``dagster-ckpt json-lines``: how many rows each checkpoint has shown in a folder of JSON lines."""

import json
from pathlib import Path

import click


@click.command("json-lines", short_help="rows of each checkpoint in a folder of JSON lines")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def json_lines(folder: Path) -> None:
    """Print the checkpoints that FOLDER shows, and the rows of each."""
    for file in sorted(folder.glob("*.jsonl")):
        position, *rows = file.read_text().splitlines()
        click.echo(f"checkpoint {json.loads(position)['checkpoint_id']}: {len(rows)} rows")
