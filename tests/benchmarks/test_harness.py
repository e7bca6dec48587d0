"""The harness of the benchmarks: what it makes of figures. No test here asserts a timing."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path

import pytest
from benchmarks.harness import Figure, Row, Run, Sides, main, measure, rate, row, table

ROOT = Path(__file__).resolve().parents[2]


def fake(
    name: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    goal: float = 1.0,
    peer: str = "a fake",
    less: bool = False,
    called: Callable[[str], None] = lambda side: None,
) -> Row:
    """A row whose rounds return what they are told, in turn."""

    @row(name, peer=peer, goal=goal, unit="s", better="less" if less else "more", rounds=len(ours))
    def sides(run: Run) -> Iterator[Sides]:
        our_figures, their_figures = iter(ours), iter(theirs)

        def one(side: str, figures: Iterator[float]) -> float:
            called(side)
            return next(figures)

        yield lambda: one("ours", our_figures), lambda: one("theirs", their_figures)
        called("cleaned up")

    return sides


def test_the_rounds_of_the_two_sides_alternate_and_are_cleaned_up_after() -> None:
    called: list[str] = []

    measure(fake("a", [1, 2, 3], [1, 2, 3], called=called.append), Run(rounds=3))

    assert called == ["ours", "theirs"] * 3 + ["cleaned up"]


def test_a_figure_is_the_median_of_its_rounds_with_their_spread() -> None:
    result = measure(fake("a", [30, 10, 20], [4, 2, 9]), Run(rounds=3))

    assert result.ours == Figure(20, 10, 30)
    assert result.theirs == Figure(4, 2, 9)


def test_the_ratio_is_that_of_the_medians_and_its_spread_that_of_the_pairs() -> None:
    result = measure(fake("a", [30, 10, 20], [4, 2, 10]), Run(rounds=3))

    assert result.ratio == 20 / 4
    assert (result.spread.low, result.spread.high) == (20 / 10, 30 / 4)


@pytest.mark.parametrize(("goal", "holds"), [(1.99, True), (2.0, True), (2.01, False)])
@pytest.mark.parametrize("less", [False, True])
def test_a_goal_holds_if_the_ratio_reaches_it_whichever_side_of_the_figure_is_better(
    goal: float, holds: bool, less: bool
) -> None:
    ours, theirs = ([10.0], [20.0]) if less else ([20.0], [10.0])

    result = measure(fake("a", ours, theirs, goal=goal, less=less), Run())

    assert result.ratio == 2.0
    assert result.holds is holds


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_round_that_returns_no_positive_number_is_an_error_and_not_a_row(wrong: float) -> None:
    with pytest.raises(ValueError, match="must return a positive number"):
        measure(fake("a", [1.0], [wrong]), Run())


def test_a_rate_leaves_out_what_comes_before_each_step() -> None:
    happened: list[str] = []

    def step() -> int:
        happened.append("step")
        return 5

    assert rate(step, steps=2, before=lambda: happened.append("before")) > 0
    assert happened == ["before", "step", "before", "step"]


def test_json_is_one_object_per_line_whose_ratio_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [fake("met", [4], [2], goal=1.5), fake("missed", [1], [2], goal=1.5)]

    status = main(rows, ["--json"])

    met, missed = map(json.loads, capsys.readouterr().out.splitlines())
    assert status == 0
    assert {"name": "met", "ours": 4, "theirs": 2, "ratio": 2.0, "goal": 1.5, "holds": True}.items() <= met.items()
    assert {"name": "missed", "ratio": 0.5, "goal": 1.5, "holds": False}.items() <= missed.items()
    assert met["ours_spread"] == [4, 4]


def test_the_table_says_which_goals_are_missed_and_the_exit_code_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    status = main([fake("met", [4], [2], goal=1.5), fake("missed", [1], [2], goal=1.5)], [])

    _, met, missed = capsys.readouterr().out.splitlines()
    assert status == 0
    assert met.split() == ["met", "4.00", "2.00", "s", "2.00", "≥", "1.50", "holds", "a", "fake"]
    assert missed.split() == ["missed", "1.00", "2.00", "s", "0.50", "≥", "1.50", "MISSED", "a", "fake"]


def test_the_columns_of_the_table_stand_below_each_other_and_show_the_spread() -> None:
    results = [
        measure(fake(name, ours, [1, 2, 3]), Run(rounds=3))
        for name, ours in [("short", [1.0, 1.5, 2.0]), ("a longer name", [12_000.0, 12_345.0, 13_000.0])]
    ]

    header, short, longer = table(results).splitlines()

    assert "1.50 (1.00–2.00)" in short
    assert "12,345 (12,000–13,000)" in longer
    assert header.index("ours") == short.index("1.50") == longer.index("12,345")


def test_only_takes_the_rows_whose_names_contain_it(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [fake(name, [1], [1]) for name in ("memory: add", "memory: claim", "sqlite: add")]

    main(rows, ["--json", "--only", "SQLITE", "--only", "claim"])

    names = [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]
    assert names == ["memory: claim", "sqlite: add"]


def test_only_with_no_such_row_names_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([fake("memory: add", [1], [1])], ["--only", "postgres"])

    assert stopped.value.code == 2
    assert "no row has 'postgres' in its name. The rows are\n  memory: add" in capsys.readouterr().err


def test_rows_of_one_name_are_told_apart_by_their_peers(capsys: pytest.CaptureFixture[str]) -> None:
    twins = [fake("a", [1], [1], peer="tables"), fake("a", [1], [1], peer="files"), fake("other", [1], [1])]

    assert main(twins, ["--only", "beside files", "--only", "other"]) == 0
    assert [line for line in capsys.readouterr().err.splitlines() if "[" in line] == [
        "[1/2] a, beside files",
        "[2/2] other",
    ]
    with pytest.raises(SystemExit):
        main(twins, ["--only", "x"])
    assert capsys.readouterr().err.endswith("  a, beside tables\n  a, beside files\n  other\n")


def test_help_keeps_the_lines_of_the_description_and_names_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    about = "\nHow fast.\n\n    run    every row\n    run --quick    smaller\n"
    told: list[str] = []

    for options in ({}, {"on_server": told.append}):
        with pytest.raises(SystemExit):
            main([], ["--help"], about=about, **options)
        shown = capsys.readouterr().out
        assert "\n    run    every row\n    run --quick    smaller\n" in shown
        assert ("--url URL" in shown) == bool(options)
    with pytest.raises(SystemExit):
        main([], ["--url"], on_server=told.append)
    assert "--url: expected one argument" in capsys.readouterr().err
    assert main([fake("a", [1], [1])], ["--url", "postgresql://host/db"], on_server=told.append) == 0
    assert told == ["postgresql://host/db"]


def test_a_quick_run_picks_the_smaller_size_and_fewer_rounds() -> None:
    quick, full = Run(quick=True), Run()

    assert (quick.pick(10, 1), full.pick(10, 1)) == (1, 10)
    assert quick.rounds() < full.rounds()
    assert (full.rounds(1), Run(rounds=4).rounds()) == (1, 4)


def test_progress_is_told_only_to_somebody_who_has_heard_nothing_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("benchmarks.harness.time.monotonic", lambda: now)
    stderr = StringIO()
    run = Run(stderr=stderr)

    run.progress("early")
    now += 2
    run.progress("late")
    run.progress("again")

    assert stderr.getvalue() == "    late\n"


def test_the_core_benchmarks_print_their_rows_as_json() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "core.py"), "--quick", "--json", "--rounds", "1"]

    ran = subprocess.run([*command, "--only", "import"], capture_output=True, text=True, check=True)

    [line] = ran.stdout.splitlines()
    said = json.loads(line)
    assert said["name"] == "import leasehold"
    assert all(isinstance(said[field], float) for field in ("ours", "theirs", "ratio", "goal"))
    assert isinstance(said["holds"], bool)
    assert "[1/1] import leasehold" in ran.stderr
