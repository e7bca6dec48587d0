"""The path that names a Router: what is found, and what a wrong one is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import leasehold

from leasehold import Router
from leasehold.cli.loading import NotLoaded, load


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is imported here is forgotten."""
    known = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A small application."""
    files = {
        "shop/__init__.py": "",
        "shop/tasks.py": "from leasehold import Router\nrouter = Router()\nclass place:\n    jobs = Router()\n",
        "shop/other.py": "from leasehold import Router\nfirst = Router()\nsecond = Router()\n",
        "empty.py": "router = 'postgresql://ann:secret@host/db'\ndef make(): ...\n",
        "broken.py": "def boom():\n    return {}['key']\nboom()\n",
        "needy.py": "import shop.tasks\nimport not_installed\n",
        "wrong.py": "def f(:\n",
        "leaves.py": "import sys\nsys.exit('no configuration')\n",
        "importing.py": "from leasehold import Router\nrouter = Router(imports=['shop.noted', 'shop.nowhere'])\n",
        "importing_broken.py": "from leasehold import Router\nrouter = Router(imports=['broken'])\n",
        "good.py": "from leasehold import Router\nrouter = Router(imports=['shop.noted'])\n",
        "shop/noted.py": "import good\n@good.router.task\ndef note() -> None: ...\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return str(tmp_path)


def refused(path: str, folder: str) -> str:
    with pytest.raises(NotLoaded) as refusal:
        load(path, folder)
    assert refusal.value.exit_code == 2
    return refusal.value.message


@pytest.mark.parametrize("path", ["shop.tasks", "shop.tasks:router", "shop.tasks:place.jobs", "shop.other:second"])
def test_a_path_names_a_router(path: str, folder: str) -> None:
    assert isinstance(load(path, folder), Router)


def test_the_modules_that_a_router_names_are_imported(folder: str) -> None:
    assert list(load("good", folder).tasks) == ["note"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("shopp.tasks", ["no module 'shopp' was found in ", "Did you mean 'shop'?", "on Python's own path"]),
        ("zzzzzz", ["no module 'zzzzzz' was found in ", "Modules there: broken, empty, good,", "shop"]),
        ("shop.taks:router", ["no module 'taks' was found in the package 'shop'", "Did you mean 'tasks'?"]),
        ("shop.zzz", ["no module 'zzz' was found in the package 'shop'", "Modules there: noted, other, tasks."]),
        ("shop.tasks.router", ["'shop.tasks' is a module, not a package", "Did you mean shop.tasks:router?"]),
        ("shop.other", ["'shop.other' has no 'router'", "It has: shop.other:first, shop.other:second."]),
        ("shop.tasks:place.job", ["a class in 'shop.tasks:place.job' has no 'job'", "It has: shop.tasks:router."]),
        ("empty", ["empty:router is a value of type str, not a Router", "There is no Router in 'empty'"]),
        ("empty:make", ["empty:make is a function, not a Router"]),
        ("shop/tasks.py:router", ["is the path of a file", "shop.tasks:router"]),
        ("./empty.py", ["is the path of a file", "name of the module instead: empty"]),
        ("shop.tasks:", ["is not a valid import path", "app:router"]),
        ("shop..tasks", ["is not a valid import path"]),
        ("a:b:c", ["is not a valid import path"]),
        ("importing", ["Router(imports=…) of 'importing' names 'shop.nowhere'", "no module 'nowhere'"]),
        ("importing_broken", ["Router(imports=…) of 'importing_broken' names 'broken'", "KeyError: 'key'"]),
    ],
)
def test_a_wrong_path_is_told_what_there_is(path: str, words: list[str], folder: str) -> None:
    said = refused(path, folder)

    assert [word for word in words if word not in said] == [], said
    assert "secret" not in said


def test_an_error_inside_a_module_is_shown_with_the_users_frames_alone(folder: str) -> None:
    said = refused("broken", folder)

    assert said.startswith("cannot import 'broken': it raised an error.\nTraceback (most recent call last):\n  File")
    assert said.endswith("KeyError: 'key'")
    assert said.count('  File "') == 2
    assert "importlib" not in said
    assert "loading.py" not in said


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("needy", ["line 2, in <module>", "No module named 'not_installed'"]),
        ("wrong", ["line 1", "SyntaxError"]),
        ("leaves", ["SystemExit: no configuration"]),
    ],
)
def test_what_a_module_cannot_import_or_parse_is_its_own_error(path: str, words: list[str], folder: str) -> None:
    said = refused(path, folder)

    assert "it raised an error" in said
    assert [word for word in words if word not in said] == [], said


def test_a_folder_that_is_none_is_named() -> None:
    assert refused("app", "/no/such/folder") == "--app-dir '/no/such/folder' is not a folder; name one that exists."


def test_the_command_says_it_in_one_line_and_ends_with_2(folder: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """From another folder, so that --app-dir is what finds the package."""
    shown = leasehold("worker", "shop.task", "--app-dir", folder, cwd=tmp_path_factory.mktemp("elsewhere"))

    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == (
        "leasehold: cannot import 'shop.task': no module 'task' was found in the package 'shop'. "
        "Did you mean 'tasks'?\n"
    )
