"""Hooks of MkDocs: navigation from the folders of docs/, and links that leave docs/ lead to copies within the site.

Pages are written for GitHub and for readers of a clone: ``../README.md`` and a link to a source file work there. In the
site such a file is below ``project/``: a page where it is Markdown, else as it is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = "project"
SECTIONS = (
    ("How-to", "how-to"),
    ("Extensions", "extensions"),
    ("Explanation", "explanation"),
    ("Reference", "reference"),
)
DECISIONS = ("Decisions", "decisions")
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def title(page: Path) -> str:
    """Return a page's first heading."""
    return next(line for line in page.read_text().splitlines() if line.startswith("# "))[2:].replace("`", "")


def pages(folder: str) -> list[dict[str, str]]:
    """Return the entries of a folder, by title; decisions by number."""
    found = [{title(page): f"{folder}/{page.name}"} for page in sorted((DOCS / folder).glob("*.md"))]
    return found if folder == "decisions" else sorted(found, key=lambda entry: next(iter(entry)).lower())


def linked_outside() -> set[Path]:
    """Return the files beside docs/ that pages of the site link to."""
    found: set[Path] = set()
    todo = sorted(DOCS.rglob("*.md"))
    while todo:
        page = todo.pop()
        for _, target, _ in LINK.findall(CODE.sub("", page.read_text())):
            path = resolved(page, target)
            if path is None or path in found or not path.is_file() or path.is_relative_to(DOCS):
                continue
            found.add(path)
            if path.suffix == ".md":
                todo.append(path)
    return found


def resolved(page: Path, target: str) -> Path | None:
    """Return the path that a page's link names in the project; None: it leads elsewhere, or within the page."""
    path = target.partition("#")[0]
    if not path or "://" in target or target.startswith("mailto:"):
        return None
    return Path(os.path.normpath(page.parent / path))


def in_site(path: Path) -> str:
    """Return where a file or folder of the project is in the site's sources."""
    if path.is_dir():
        return f"{path.relative_to(DOCS)}/index.md"
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"


def source_of(src_uri: str) -> Path:
    """Return the file that a page of the site is made from."""
    outside = PurePosixPath(src_uri).is_relative_to(OUTSIDE)
    return ROOT / PurePosixPath(src_uri).relative_to(OUTSIDE) if outside else DOCS / src_uri


# --- hooks --------------------------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Make the navigation."""
    outside = [path for path in sorted(linked_outside()) if path.suffix == ".md"]
    config.nav = [
        {"Overview": "README.md"},
        {"Tutorial": "tutorial.md"},
        *({name: [{"All": f"{folder}/index.md"}, *pages(folder)]} for name, folder in SECTIONS),
        {
            "Project": [
                {title(DOCS / "architecture.md"): "architecture.md"},
                {title(DOCS / "benchmarks.md"): "benchmarks.md"},
                {title(DOCS / "reliability.md"): "reliability.md"},
                *({title(path): in_site(path)} for path in outside),
            ]
        },
        {DECISIONS[0]: [{"All": f"{DECISIONS[1]}/index.md"}, *pages(DECISIONS[1])]},
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files beside docs/ that are linked to, and a list of each folder's pages."""
    for path in sorted(linked_outside()):
        files.append(File.generated(config, in_site(path), content=path.read_bytes()))
    for name, folder in (*SECTIONS, DECISIONS):
        entries = [one for entry in pages(folder) for one in entry.items()]
        listed = [f"* [{text}]({PurePosixPath(uri).name})" for text, uri in entries]
        content = "\n".join([f"# {name}", "", *listed, ""])
        files.append(File.generated(config, f"{folder}/index.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the project into links between files of the site."""
    source = source_of(page.file.src_uri)
    if not source.exists():
        return markdown

    def replaced(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        path = resolved(source, target)
        if path is None or not path.exists():
            return match.group(0)
        anchor = target.partition("#")[2]
        to = os.path.relpath(in_site(path), PurePosixPath(page.file.src_uri).parent)
        return f"{before}{to}{'#' + anchor if anchor else ''}{after}"

    parts = CODE.split(markdown)
    return "".join(part if CODE.fullmatch(part) else LINK.sub(replaced, part) for part in parts)
