"""
The packages: an sdist that can be built and tested from, and a wheel that runs in an empty environment.

Both are built from this checkout, the wheel from the unpacked sdist. Nothing is downloaded.
"""

from __future__ import annotations

import email
import email.message
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import leasehold

TOP = Path(__file__).parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
# Of a checkout, for those who change leasehold, and not part of an sdist.
NOT_PACKED = {".ci", ".git", ".github", ".gitignore", ".pre-commit-config.yaml"}
PACKED_FOLDERS = ("benchmarks", "docs", "examples", "scripts", "src", "tests")


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run *command* without this environment's own paths."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LEASEHOLD"))}
    return subprocess.run(command, cwd=cwd, env={**kept, **variables}, capture_output=True, text=True)


def build(source: Path, target: str, out: Path) -> Path:
    """Build an sdist or a wheel."""
    ran = run(sys.executable, "-P", "-m", "hatchling", "build", "-t", target, "-d", out, cwd=source)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (built,) = out.glob("*.tar.gz" if target == "sdist" else "*.whl")
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(TOP, "sdist", folder)) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from the sdist."""
    return build(sdist, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    ran = run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    ran = run(*pip, wheel, cwd=folder, PIP_CONFIG_FILE=os.devnull)
    assert ran.returncode == 0, ran.stderr
    return python


def tracked(folder: Path) -> set[str]:
    """The files of a folder, but for caches."""
    return {
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and not {"__pycache__", ".hypothesis"} & {*file.parts} and file.suffix != ".pyc"
    }


def metadata(wheel: Path) -> email.message.Message:
    """What a package index shows."""
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(files.read(name).decode())


def test_the_sdist_has_what_it_takes_to_test_and_nothing_else(sdist: Path) -> None:
    """Every file of the folders that the tests and the docs need, and no cache, environment or built page."""
    for folder in PACKED_FOLDERS:
        assert tracked(sdist / folder) == tracked(TOP / folder), folder
    there = {path.name for path in sdist.iterdir()}
    pages = {path.name for path in TOP.glob("*.md")}

    assert there - NOT_PACKED == {*PACKED_FOLDERS, *pages, "LICENSE", "PKG-INFO", "pyproject.toml"}
    assert [name for name in tracked(sdist) if "__pycache__" in name or name.endswith((".pyc", ".db"))] == []


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    """Python, SQL and the mark of a typed package; beside them the licence and the entry points."""
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
    package = {name.removeprefix("leasehold/") for name in names if name.startswith("leasehold/")}
    beside = {name.partition(".dist-info/")[2] for name in names if not name.startswith("leasehold/")}

    assert package == tracked(TOP / "src" / "leasehold")
    assert "py.typed" in package
    assert [name for name in package if name.endswith(".sql")]
    assert beside == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_the_wheel_runs_a_memory_job_and_a_sqlite_job(python: Path, tmp_path: Path) -> None:
    """With the standard library alone."""
    program = (
        "import sys, leasehold\n"
        "from leasehold import Router\n"
        "for url in (None, 'sqlite:///jobs.db'):\n"
        "    router = Router(url)\n"
        "    @router.task\n"
        "    def double(number: int) -> int: return 2 * number\n"
        "    added = double.add(21)\n"
        "    router.work(until_empty=True)\n"
        "    print(router.result(added))\n"
        "    router.close()\n"
        "print(leasehold.__file__.startswith(sys.prefix))\n"
    )
    ran = run(python, "-W", "error", "-c", program, cwd=tmp_path)

    assert (ran.returncode, ran.stdout) == (0, "42\n42\nTrue\n"), ran.stderr


def test_the_command_of_the_wheel_asks_for_its_libraries(python: Path, tmp_path: Path) -> None:
    """Its version it has without them."""
    command = python.with_name("leasehold")
    version = run(command, "--version", cwd=tmp_path)
    demo = run(command, "demo", cwd=tmp_path)

    assert (version.returncode, version.stdout) == (0, f"leasehold {leasehold.__version__}\n")
    assert (demo.returncode, demo.stderr) == (2, "The command needs click and rich: pip install click rich\n")


def test_the_demo_of_the_wheel_runs(python: Path, tmp_path: Path) -> None:
    """With click and rich, and what rich needs, beside the wheel."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in ("click", "rich", "markdown_it", "mdurl", "pygments"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (libraries / name).symlink_to(Path(spec.origin).parent)
    command = python.with_name("leasehold")

    version = run(command, "--version", cwd=tmp_path, PYTHONPATH=str(libraries))
    demo = run(command, "demo", cwd=tmp_path, PYTHONPATH=str(libraries))
    assert version.stdout == f"leasehold {leasehold.__version__}\n"
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "stale" in demo.stdout.lower()


def test_the_metadata_is_complete(wheel: Path) -> None:
    """What a package index shows, and that the version is one."""
    shown = metadata(wheel)
    classifiers = shown.get_all("Classifier") or []
    urls = dict(url.split(", ") for url in shown.get_all("Project-URL") or [])

    assert shown["Version"] == leasehold.__version__ == PROJECT["version"]
    assert shown["Author"] == "The leasehold authors"
    assert (shown["License-Expression"], shown["License-File"]) == ("Apache-2.0", "LICENSE")
    assert shown["Requires-Python"] == ">=3.11"
    assert len(shown["Keywords"].split(",")) >= 5
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)} <= set(classifiers)
    assert {"Source", "Documentation", "Changelog", "Issues"} <= urls.keys()
    assert [extra for extra in shown.get_all("Requires-Dist") or [] if "extra ==" not in extra] == []


def test_links_of_the_readme_work_on_a_package_index(wheel: Path) -> None:
    """There, a relative one would lead into the index."""
    readme = metadata(wheel).get_payload()
    assert isinstance(readme, str)
    links = re.findall(r"\]\(([^)]+)\)", readme)

    assert f"{PROJECT['urls']['Source']}/blob/main/docs/explanation/promises.md" in links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
