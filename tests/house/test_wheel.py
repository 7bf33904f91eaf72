"""What people install: the wheel that is built from the sdist, as a release does it."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import antifreeze

ROOT = Path(__file__).parents[2]
PAGE = "antifreeze/doctor/explain/troubleshooting.md"
BUILD = "import setuptools.build_meta as backend; backend.build_{}({!r})"


def build(kind: str, folder: Path, target: Path) -> Path:
    """Build an sdist or a wheel of the project in a folder, without the network, and return its path."""
    target.mkdir()
    command = [sys.executable, "-c", BUILD.format(kind, str(target))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = target.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Return the wheel. The checkout itself stays as it is: a build writes into the folder that it runs in."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("src", "docs"):
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    with tarfile.open(build("sdist", folder, folder / "dist-sdist")) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return zipfile.ZipFile(build("wheel", unpacked, folder / "dist-wheel"))


def test_a_wheel_has_every_module_and_no_test(wheel: zipfile.ZipFile) -> None:
    """And the marker that says that it is typed."""
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/antifreeze").rglob("*.py")}
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert names == modules | {"antifreeze/py.typed", PAGE}


def test_a_wheel_has_the_page_of_the_documentation(wheel: zipfile.ZipFile) -> None:
    """``antifreeze explain`` prints it from the installed version."""
    assert wheel.read(PAGE) == (ROOT / "docs/troubleshooting.md").read_bytes()


def test_the_version_is_written_in_one_place(wheel: zipfile.ZipFile) -> None:
    """In ``__version__``; the build reads it from there."""
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]

    assert email.message_from_bytes(wheel.read(metadata))["Version"] == antifreeze.__version__


def test_the_citation_has_the_version() -> None:
    """The one other file that must name it."""
    assert f"\nversion: {antifreeze.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_a_release_publishes_absolute_links() -> None:
    """A package index shows the README, and has no files beside it."""
    tools = ROOT / "tools"
    code = "import release_metadata as r; print(r.absolute((r.ROOT / 'README.md').read_text(), 'https://x', 'v1'))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tools, capture_output=True, text=True, timeout=60, check=True)
    targets = re.findall(r"\]\(([^)\s]+)\)", done.stdout)

    assert "https://x/blob/v1/docs/doctor.md" in targets
    assert "https://x/raw/v1/docs/img/overview.svg" in targets
    assert [target for target in targets if not target.startswith("https://")] == []
