"""
The package as a whole: its public names, its layers, what it may import, and that it explains itself.

Long on purpose: the lists of public names and layers are read beside the checks that compare them.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold

PACKAGE = Path(leasehold.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# The diff of this list is the review of a change to the public names.
PUBLIC = {
    # the front door, and what it gives
    "Router",
    "AsyncRouter",
    "Lease",
    "AsyncLease",
    "current_lease",
    # tasks and workers
    "Health",
    "Tally",
    "Task",
    "AsyncTask",
    "TaskOptions",
    "TaskSettings",
    "Worker",
    "WorkerStatus",
    # guards
    "Guard",
    "Sealed",
    "Unreached",
    # what readers see
    "Added",
    "Counts",
    "Effect",
    "Ending",
    "Event",
    "Job",
    "JobOptions",
    "JobSettings",
    "NewJob",
    "Observation",
    "ObservationKind",
    "Ownership",
    "Page",
    "Parked",
    "Process",
    "Pruned",
    "Queue",
    "Reason",
    "Status",
    "Search",
    "BulkOutcome",
    "Moved",
    # settings
    "Clock",
    "Retention",
    "Retry",
    # errors
    "LeaseholdError",
    "Conflict",
    "CredentialExpired",
    "CredentialRefused",
    "GuardUnavailable",
    "InDoubt",
    "InvalidArgument",
    "JobFailed",
    "NoLease",
    "NotFinished",
    "NotInTransaction",
    "Settled",
    "StaleEpoch",
    "StaleSnapshot",
    "StoreIncompatible",
    "StoreUnavailable",
    "Unfenced",
    "UnknownJob",
    "Unsupported",
}

# Each entry may import from those above it, and from itself. `store` is a contract and `stores/` fulfils it, so a
# store knows nothing of leases; `testing` is for users of all that is public, and nothing else here imports it.
LAYERS = [
    "errors",
    "logs",
    "core",
    "connections",
    "liveness",
    "credentials",
    "transaction",
    "store",
    "stores",
    "reconciler",
    "aio",
    "lease",
    "guard",
    "guards",
    "tasks",
    "worker",
    "router",
    "views",
    "__init__",
    "testing",
    "cli",
    "__main__",
]

# What reads or starts something outside of the process's own values. `core/` decides, and the edges act.
EDGES = {
    "asyncio",
    "concurrent",
    "io",
    "logging",
    "multiprocessing",
    "pathlib",
    "queue",
    "random",
    "select",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
}
EDGES_OF_CORE = {
    "core/clock.py": {"threading", "time"},  # the one module that waits and reads a clock
}

CLOCKS = {
    ("time", name)
    for name in (
        "clock_gettime",
        "clock_gettime_ns",
        "gmtime",
        "localtime",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "time",
        "time_ns",
    )
} | {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}
READS_A_CLOCK = {"core/clock.py"}

LONGEST_MODULE = 600
LONGER_MODULES: dict[str, str] = {}  # by path, with the reason
LONG_MODULE = 450
MOST_LONG_MODULES = 5


def shown(path: Path) -> str:
    """A module as the tests name it."""
    return path.relative_to(PACKAGE).as_posix()


def layer_of(path: Path) -> str:
    """The entry of LAYERS that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A module as syntax."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def nodes_at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING`, which only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        yield node
        yield from nodes_at_run_time(node)


def imports(path: Path) -> Iterator[str]:
    """The full name of every module that *path* imports, and of everything that it imports from one."""
    package = ["leasehold", *path.relative_to(PACKAGE).parts[:-1]]
    for node in nodes_at_run_time(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


# The door


def test_the_public_names_are_exactly_these() -> None:
    """A name that appears or vanishes is noticed here."""
    assert set(leasehold.__all__) == PUBLIC
    assert len(leasehold.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_is_there_and_explains_itself(name: str) -> None:
    """With words of its own, and not those of a base class."""
    thing = getattr(leasehold, name)
    assert thing.__name__ == name
    assert vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__


def test_the_version_is_the_one_that_is_installed() -> None:
    """The number stands in two places."""
    assert leasehold.__version__ == importlib.metadata.version("leasehold")


def test_the_map_of_the_package_names_what_is_there() -> None:
    """Each entry of the map at the top of the package is a module or a folder, and none is left out."""
    assert leasehold.__doc__ is not None
    entries = set(re.findall(r"^    (\S+)|   (\w+/) ", leasehold.__doc__, re.MULTILINE))
    # The contracts and helpers of those on the map, and what Python itself asks for.
    unmapped = {"__init__", "__main__", "aio", "liveness", "logs", "transaction"}
    assert {(first or second).strip("/") for first, second in entries} == {*map(layer_of, MODULES)} - unmapped


NOT_PYTHON = {"*.sql", "statements.sql", "functions/"}  # on the map of a store


@pytest.mark.parametrize("folder", ["worker", "worker/executors/process", "stores/postgres", "stores/sqlite"])
def test_the_map_of_a_folder_names_what_is_there(folder: str) -> None:
    """Each line of the map at the top of the folder is a module or a folder in it, and none is left out."""
    words = ast.get_docstring(parsed(PACKAGE / folder / "__init__.py")) or ""
    entries = [name for name in re.findall(r"^    (\S+)  ", words, re.MULTILINE) if name not in NOT_PYTHON]
    there = [path.stem for path in (PACKAGE / folder).glob("*.py") if path.stem != "__init__"]
    there += [f"{path.parent.name}/" for path in (PACKAGE / folder).glob("*/__init__.py")]
    assert sorted(entries) == sorted(there)


def test_type_checkers_are_told_that_the_package_is_typed() -> None:
    """PEP 561."""
    assert (PACKAGE / "py.typed").is_file()


# Layers


def test_the_list_of_layers_is_complete() -> None:
    """Nothing in the package is outside of them."""
    assert {layer_of(path) for path in MODULES} == set(LAYERS)


def test_modules_import_only_from_layers_above_their_own() -> None:
    """So that the tree is the first diagram, and a true one."""
    below = []
    for path in MODULES:
        for name in imports(path):
            parts = name.split(".")
            inner = parts[1] if len(parts) > 1 and parts[1] in LAYERS else "__init__"
            if parts[0] == "leasehold" and LAYERS.index(inner) > LAYERS.index(layer_of(path)):
                below.append(f"{shown(path)} imports {name}")
    assert below == []


def test_the_core_neither_reads_nor_writes_nor_waits() -> None:
    """It is functions of values; only clock.py waits."""
    edges = []
    for path in MODULES:
        if layer_of(path) == "core":
            found = {name.split(".")[0] for name in imports(path)} & EDGES - EDGES_OF_CORE.get(shown(path), set())
            called = {ast.unparse(node.func) for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)}
            edges += [f"{shown(path)}: {name}" for name in found | called & {"open", "print", "input"}]
    assert edges == []


def test_only_the_clock_reads_a_clock() -> None:
    """Code that asks the machine for the time cannot be tested by moving it."""
    readers = set()
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute):
                named = {(ast.unparse(node.value).split(".")[-1], node.attr)}
            elif isinstance(node, ast.ImportFrom):
                named = {(node.module or "", alias.name) for alias in node.names}
            else:
                continue
            if named & CLOCKS:
                readers.add(shown(path))
    assert readers == READS_A_CLOCK


def test_no_module_has_grown_too_long() -> None:
    """Where state meets I/O, files grow; split them before this."""
    lengths = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path for path, lines in lengths.items() if lines > LONGEST_MODULE} == LONGER_MODULES.keys()
    assert len([path for path, lines in lengths.items() if lines > LONG_MODULE]) <= MOST_LONG_MODULES


FILES_OF_A_STORE = {"stores/postgres": 14, "stores/sqlite": 10}


@pytest.mark.parametrize("folder", sorted(FILES_OF_A_STORE))
def test_a_store_has_few_files(folder: str) -> None:
    """A reader of one store opens this many; a new concern goes to the module that it belongs to."""
    assert len(list((PACKAGE / folder).glob("*.py"))) <= FILES_OF_A_STORE[folder]


CONTRACT = "Store"
VERBS = {
    node.name: node
    for kind in parsed(PACKAGE / "store.py").body
    if isinstance(kind, ast.ClassDef) and kind.name == CONTRACT
    for node in kind.body
    if isinstance(node, ast.FunctionDef)
}


def test_no_store_is_split_by_inheritance() -> None:
    """
    A verb is found in `store.py`; what it shares with others is a function, or an object that the store has.

    A store may name the contract as its base, which has the docstrings of its verbs and does nothing.
    """
    stores = [node for path in (PACKAGE / "stores").glob("*/store.py") for node in ast.walk(parsed(path))]
    classes = [node for node in stores if isinstance(node, ast.ClassDef) and node.name.endswith("Store")]

    assert sorted(node.name for node in classes) == ["MemoryStore", "PostgresStore", "SqliteStore"]
    assert {ast.unparse(base) for node in classes for base in node.bases} <= {CONTRACT}
    assert {ast.unparse(verb.body[-1]) for verb in VERBS.values()} == {"..."}


# Sentences

# A person sees these of an error whose statement no code of this package sends, so none of it can make a sentence.
PROSE_IN_SQL = {
    "a transaction that is fenced by a lease cannot be prepared",
    "It would keep the lease locked until it is committed, over restarts too. Commit it in one phase.",
    "a transaction that is fenced by a guard cannot be prepared",
    "It would keep the marks locked until it is committed, over restarts too. Commit it in one phase.",
    "Run the transaction again, unless StaleEpoch.find(error) returns a refusal.",
}


def prose(sql: str) -> set[str]:
    """The string literals of *sql* with three words or more."""
    # Comments, which may have apostrophes, are matched so that no literal begins in one.
    literals = re.findall(r"--[^\n]*|'((?:[^']|'')*)'", sql)
    return {text for text in literals if re.search(r"\b[A-Za-z]+[,:;]? +(?:%?[A-Za-z]+[,:;]? +)+[A-Za-z]", text)}


def test_no_sentence_is_made_in_sql() -> None:
    """A function answers with facts, and Python makes the sentence once, for all stores."""
    found = {text for path in PACKAGE.rglob("*.sql") for text in prose(path.read_text(encoding="utf-8"))}
    assert found - {"ALTER SEQUENCE %s RESTART WITH %s"} == PROSE_IN_SQL  # which is a statement


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT format('the lease of %s expired', owner)", {"the lease of %s expired"}),
        ("RAISE EXCEPTION USING ERRCODE = 'LH001', MESSAGE = 'stale epoch'", set()),
        ("SELECT 1 -- it's not a literal, and isn't one here", set()),
        ("current_setting('transaction_isolation') = 'read committed'", set()),
    ],
)
def test_a_sentence_in_sql_is_found(sql: str, found: set[str]) -> None:
    """By its words; a code has two at most."""
    assert prose(sql) == found


# Privacy


def is_private(name: str) -> bool:
    """Whether a name begins with one underscore."""
    return name.startswith("_") and not name.endswith("__")


def folder_of(path: Path) -> str:
    """What shares private names: a folder, and each module beside the folders for itself."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) == 1 else "/".join(parts[:-1])


def private_names(kind: ast.ClassDef) -> set[str]:
    """What a class defines for itself: methods, attributes of `self`, annotations and slots."""
    names = set[str]()
    for node in ast.walk(kind):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=ast.Tuple(elts=slots)):
                names |= {str(ast.literal_eval(slot)) for slot in slots}
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
    return set(filter(is_private, names))


def private_reads(sources: dict[Path, ast.Module]) -> list[str]:
    """Every `thing._name` whose class is in another folder, and every import of a private name from one."""
    classes = [
        (folder_of(path), node.name, private_names(node))
        for path, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    found = []
    for path, tree in sources.items():
        here = folder_of(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level > (path.name != "__init__.py"):
                found += [f"{shown(path)}: import {alias.name}" for alias in node.names if is_private(alias.name)]
            if not isinstance(node, ast.Attribute) or not is_private(node.attr):
                continue
            owner = ast.unparse(node.value)
            if owner in ("self", "cls", "super()"):
                continue
            homes = {(folder, name) for folder, name, names in classes if node.attr in names}
            # Two folders may have the same name, such as `_store`: then a variable called `lease` holds a Lease.
            called = owner.rpartition(".")[2].strip("_").replace("_", "")
            meant = {(folder, name) for folder, name in homes if name.lower() == called}
            if homes and here not in {folder for folder, _ in meant or homes}:
                found.append(f"{shown(path)}: {ast.unparse(node)}")
    return found


def test_no_private_attribute_is_read_outside_of_the_folder_that_defines_it() -> None:
    """A class gives others a method, or a function at its folder's door, so that its state can change by itself."""
    assert private_reads({path: parsed(path) for path in MODULES}) == []


@pytest.mark.parametrize(
    ("reader", "found"),
    [
        ("def f(lease): return lease._grant", ["worker/run.py: lease._grant"]),
        ("def f(run): return run.lease._store", ["worker/run.py: run.lease._store"]),
        ("def f(other): return other._store", []),  # which a class here has too
        ("from ..lease.lease import _current", ["worker/run.py: import _current"]),
        ("from .log import _write", []),
        ("def f(self): return self._grant, super()._grant", []),
        ("def f(thing): return thing._fields", []),  # which no class here defines
    ],
)
def test_a_private_read_is_found(reader: str, found: list[str]) -> None:
    """Across folders, and by the name of a variable where two folders have the same private name."""
    sources = {
        "lease/lease.py": "class Lease:\n    __slots__ = ('_grant',)\n    def __init__(self): self._store = 1",
        "worker/worker.py": "class Worker:\n    def __init__(self): self._store = 1",
        "worker/run.py": reader,
    }
    assert private_reads({PACKAGE / path: ast.parse(source) for path, source in sources.items()}) == found


# The standard library alone


def isolated(program: str, folder: Path) -> str:
    """Run *program* in *folder*, in a Python that sees the source tree and the standard library, and nothing else."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONPATH"] = str(PACKAGE.parent)
    ran = subprocess.run(
        [sys.executable, "-S", "-P", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_core_the_stores_and_the_router_need_the_standard_library_alone(tmp_path: Path) -> None:
    """Imported one by one, without site-packages; whatever else came along is listed."""
    layers = set(LAYERS[: LAYERS.index("router") + 1])
    names = ["leasehold"] + [
        ".".join(["leasehold", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
        for path in MODULES
        if layer_of(path) in layers and not {"postgres", "objects"} & {*path.parts}  # each stands on an extra
    ]
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded - set(sys.stdlib_module_names) - {'__main__', '__mp_main__', 'leasehold'}))\n"
    )
    assert isolated(program, tmp_path) == "[]\n"


def test_the_import_of_the_package_brings_no_database_and_no_loop_machinery_of_others(tmp_path: Path) -> None:
    """A store is imported on use: a Python without sqlite3 can have the memory store."""
    program = (
        "import sys, leasehold\n"
        "print(sorted({'sqlite3', 'psycopg', 'obstore', 'sqlalchemy', 'click', 'rich'} & set(sys.modules)))"
    )
    assert isolated(program, tmp_path) == "[]\n"


def test_a_synchronous_program_loads_no_event_loop(tmp_path: Path) -> None:
    """It is a third of what there would be to load, and comes with the first `.aio`."""
    program = (
        "import sys\n"
        "from leasehold import Router\n"
        "router = Router()\n"
        "router.add('one')\n"
        "with router.claim('me').keep() as lease: lease.progress(0.5)\n"
        "lease.complete()\n"
        "print('asyncio' in sys.modules)\n"
        "router.aio\n"
        "print('asyncio' in sys.modules)\n"
    )
    assert isolated(program, tmp_path) == "False\nTrue\n"


def test_the_import_of_the_package_brings_no_worker(tmp_path: Path) -> None:
    """Whose classes are imported on use, and are listed all the same."""
    program = (
        "import sys, leasehold\n"
        "print(sorted({'leasehold.worker.worker', 'leasehold.tasks.task'} & set(sys.modules)))\n"
        "print({'Worker', 'Task'} <= set(dir(leasehold)), hasattr(leasehold, 'Wroker'))\n"
        "from leasehold import Worker; print(Worker.__module__)"
    )
    assert isolated(program, tmp_path) == "[]\nTrue False\nleasehold.worker.worker\n"


def test_the_package_works_uninstalled(tmp_path: Path) -> None:
    """From the source tree by its path, with nothing installed: both stores, from add to complete."""
    program = (
        "from leasehold import Router\n"
        "for url in (None, 'sqlite:///jobs.db'):\n"
        "    with Router(url) as router:\n"
        "        router.add('a', {'total': 10})\n"
        "        lease = router.claim('worker-0')\n"
        "        lease.complete(lease.payload['total'])\n"
        "        print(router.job('a').status, router.job('a').result)\n"
    )
    assert isolated(program, tmp_path) == "done 10\ndone 10\n"


# Words


def documented(path: Path) -> Iterator[tuple[str, str | None]]:
    """Every public module, class, function and method of *path*, with its docstring, if need be the contract's."""
    tree = parsed(path)
    yield shown(path), ast.get_docstring(tree)
    pending: list[tuple[str, ast.AST]] = [(shown(path), tree)]
    while pending:
        name, node = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{name}:{child.name}"
                if child.name.startswith("_") or any("overload" in ast.unparse(d) for d in child.decorator_list):
                    continue
                inherited = isinstance(node, ast.ClassDef) and CONTRACT in map(ast.unparse, node.bases)
                yield inner, ast.get_docstring(VERBS.get(child.name, child) if inherited else child)
                if isinstance(child, ast.ClassDef):
                    pending.append((inner, child))


def test_everything_public_begins_its_docstring_with_a_sentence() -> None:
    """The first paragraph is the promise: a capital, and a full stop (or what a list begins with)."""
    unfinished = []
    for path in MODULES:
        for name, words in documented(path):
            first = (words or "").split("\n\n")[0].strip()
            if not first or (first[0].isalpha() and not first[0].isupper()) or first[-1] not in ".:?!":
                unfinished.append(f"{name}: {first!r}")
    assert unfinished == []


def test_the_sum_of_the_source_is_importable() -> None:
    """Also what nothing else imports."""
    for path in MODULES:
        if path.name != "__main__.py":
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            importlib.import_module(".".join(["leasehold", *parts]).removesuffix(".__init__"))


PUBLIC_MODULES = {
    "leasehold.credentials",
    "leasehold.guard",
    "leasehold.store",
    "leasehold.testing",
}  # documented, beside `leasehold` itself
INTERNAL = {
    "Order": "in core/search.py: what a Search is sorted by, for stores",
    "Mark": "in core/marks.py; leasehold.guards exports it",
    "Writer": "in core/marks.py; leasehold.guards exports it",
    "Registry": "what the constructor of a task takes, which @router.task calls",
    "Adder": "the same",
    "Arguments": "the same",
    "Child": "in worker/executors/process/child.py; in lease.py it is short for NewJob or a mapping",
    "Decorator": "what @router.task(…) is until it gets its function",
    "Grant": "what the constructor of a lease takes, which a store makes",
    "Reports": "what a worker passes to the constructor of a lease",
    "Run": "what the parts of a worker say to it",
    "Shop": "what the constructor of a worker takes, which router.worker() calls",
}


def types_in(annotation: object) -> set[str]:
    """The names of leasehold's own types in an annotation, which is a string."""
    return {name for name in re.findall(r"[A-Za-z]\w*", str(annotation)) if name in OWN_TYPES}


OWN_TYPES = {
    node.name: f"leasehold.{shown(path).removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
    for path in MODULES
    for node in parsed(path).body
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and "cli" not in path.parts
}


@pytest.mark.parametrize("name", leasehold.__all__)
def test_every_type_that_a_public_name_takes_or_returns_is_public(name: str) -> None:
    """So that a user can annotate what holds one."""
    public = getattr(leasehold, name)
    methods = [*vars(public).values()] if isinstance(public, type) else [public]
    needed = set[str]()
    for method in methods:
        method = getattr(method, "fget", None) or getattr(method, "func", None) or method
        method = getattr(method, "__func__", method)
        if inspect.isfunction(method) and (not method.__name__.startswith("_") or method.__name__ == "__init__"):
            while hasattr(method, "__wrapped__"):
                method = method.__wrapped__
            for annotation in method.__annotations__.values():
                needed |= types_in(annotation)

    hidden = needed - {*leasehold.__all__, *INTERNAL}
    assert {one: OWN_TYPES[one] for one in hidden if OWN_TYPES[one] not in PUBLIC_MODULES} == {}


RAISES_NOTHING_ELSE = {  # than what the class says of all its verbs
    *("around", "lifespan", "override", "close", "worker", "jobs", "snapshot", "events", "counts", "verify"),
    *("pause", "resume", "queues", "workers", "observations", "reclaim", "prune", "advance", "active"),
    *("arguments", "encode_result", "decode_result"),  # for workers
}


@pytest.mark.parametrize("kind", ["Router", "AsyncRouter", "Lease", "AsyncLease", "Task", "TaskOptions", "AsyncTask"])
def test_every_verb_says_what_it_raises(kind: str) -> None:
    """Where a user looks first: in its own docstring."""
    verbs = {
        name: inspect.getdoc(verb) or ""
        for name, verb in vars(getattr(leasehold, kind)).items()
        if inspect.isfunction(verb) and not name.startswith("_") and name not in RAISES_NOTHING_ELSE
    }
    assert verbs
    assert [name for name, said in verbs.items() if not re.search(r"\b[Rr]aises?\b", said)] == []
