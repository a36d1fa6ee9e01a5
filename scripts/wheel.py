"""Build the wheel, say what it installs, and import it where neither the checkout nor an editable install is.

``python -m scripts.wheel [folder]``. tests/test_packaging.py asks the same functions.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def build_wheel(target: Path) -> Path:
    """Build the checkout's wheel into ``target`` and return its path. Ends the program when that fails."""
    before = set(target.glob("*.whl"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"the wheel could not be built:\n{done.stdout}{done.stderr}")
    built = sorted(set(target.glob("*.whl")) - before, key=lambda path: path.stat().st_mtime)
    return built[-1] if built else max(target.glob("*.whl"), key=lambda path: path.stat().st_mtime)


def top_level(wheel: Path) -> list[str]:
    """Return the names that installing the wheel adds to site-packages."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted({name.split("/")[0] for name in archive.namelist()})


def clean_interpreter(wheel: Path, folder: Path) -> Path:
    """Return a Python with the wheel installed and this one's dependencies, but not its editable install.

    A path file makes the dependencies importable; path files among them, by which an editable install works,
    are not read from there.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    packages = Path(
        subprocess.check_output(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
    )
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", str(packages)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run_clean(python: Path, code: str) -> str:
    """Run code in a clean interpreter, from a folder outside the checkout, and return what it printed.

    Raises RuntimeError with what it said when it fails.
    """
    with tempfile.TemporaryDirectory() as elsewhere:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        done = subprocess.run(
            [str(python), "-c", code],
            cwd=elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"in a clean interpreter this failed: {code}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(target: Path) -> None:
    """Build, list, import; ends with a non-zero status when one of them fails."""
    target.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel(target)
    print(f"built {wheel}")
    print(f"it installs: {', '.join(top_level(wheel))}")
    with tempfile.TemporaryDirectory() as folder:
        python = clean_interpreter(wheel, Path(folder) / "venv")
        code = (
            "import dagster_ckpt as d; [getattr(d, n) for n in d.__all__]; print(d.__version__, d.__file__)"
        )
        version, where = run_clean(python, code).split(maxsplit=1)
    print(f"imported dagster_ckpt {version} with all its public names from {where.strip()}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
