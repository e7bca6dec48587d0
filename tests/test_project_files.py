"""The files for those who host, report and contribute: they parse, and agree with what the project supports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

TOP = Path(__file__).parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((TOP / ".github" / "workflows").glob("*.yml"))
pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="an sdist has no .github")


def read(path: Path) -> Any:
    """A YAML file as values. YAML 1.1 reads the key `on` as True."""
    return yaml.safe_load(path.read_text())


def steps(workflow: Any) -> list[dict[str, Any]]:
    """The steps of all jobs of a workflow."""
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_its_parts(path: Path) -> None:
    """It may write nothing unless a job says so, its jobs end, and each step runs something."""
    workflow = read(path)

    assert workflow[True], "when it runs"
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in workflow["jobs"].items() if not 0 < job.get("timeout-minutes", 0) <= 60] == []
    assert [step for step in steps(workflow) if ("uses" in step) == ("run" in step)] == []
    assert [
        step["uses"] for step in steps(workflow) if "uses" in step and not re.search(r"@[\w./-]+$", step["uses"])
    ] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_there_is(path: Path) -> None:
    """Each script and each path of tests that it names exists."""
    commands = "\n".join(step["run"] for step in steps(read(path)) if "run" in step)

    named = re.findall(r"(?:\./scripts/[\w-]+|\btests(?:/[\w./-]+)?)", commands)
    assert [name for name in named if not (TOP / name).exists()] == []


def test_the_matrix_is_what_the_package_supports() -> None:
    """Every Python of the classifiers, and PostgreSQL 14 to 18; and once without any extra."""
    jobs = read(TOP / ".github/workflows/tests.yml")["jobs"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))

    assert jobs["matrix"]["strategy"]["matrix"] == {"python": pythons, "postgres": [str(n) for n in range(14, 19)]}
    assert [step["run"] for step in jobs["without-extras"]["steps"] if "pip install . " in step.get("run", "")]
    assert [step for step in jobs["docs"]["steps"] if step.get("run") == "./scripts/docs"]


def test_the_hooks_before_a_commit_are_those_of_the_tests() -> None:
    """Ruff and mypy, as scripts/test runs them."""
    (repository,) = read(TOP / ".pre-commit-config.yaml")["repos"]
    script = (TOP / "scripts" / "test").read_text()

    assert repository["repo"] == "local"
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff-check", "ruff-format", "mypy"]
    for hook in repository["hooks"]:
        tool = hook["entry"].partition("-m ")[2].replace(" --force-exclude", "")
        assert f" {tool}\n" in script, tool


@pytest.mark.parametrize("path", sorted((TOP / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_a_form_for_issues_parses(path: Path) -> None:
    """With ids that are given once."""
    form = read(path)
    if path.name == "config.yml":
        assert [
            link["url"] for link in form["contact_links"] if not link["url"].startswith(PROJECT["urls"]["Source"])
        ] == []
        return
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert form["name"]
    assert form["description"]
    assert len(ids) == len(set(ids)) > 0


def test_addresses_are_those_of_one_repository() -> None:
    """The metadata and the forms, and the pages, which link to other projects too."""
    text = "".join(path.read_text() for path in [TOP / "pyproject.toml", *(TOP / ".github").rglob("*.*")])
    pages = "".join(path.read_text() for path in [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")])
    source = PROJECT["urls"]["Source"]

    assert set(re.findall(r"https://github\.com/[\w-]+/[\w-]+", text)) == {source}
    assert set(re.findall(r"https?://[\w.-]+/[\w-]+/leasehold\b", pages)) == {source}
