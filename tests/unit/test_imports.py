"""Imports point one way, cores touch no clock, disk or network, and contracts know no fractions.

Read from the source by ``ast``, so that an import inside a function or under TYPE_CHECKING counts too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gdf_market", "ledger", "verifier", "contracts")

# which layers a layer may import; a module belongs to the layer with the longest matching prefix
ALLOWED: dict[str, set[str]] = {
    "gdf_market": set(),  # the kernel: modules directly in the package
    "contracts": {"gdf_market"},
    "gdf_market.book": {"gdf_market"},
    "gdf_market.train": {"gdf_market"},
    "gdf_market.blobs": {"gdf_market"},
    # the process that trains and audits sits above the verifier, which sits above the rest of train
    "gdf_market.train.runner": {"gdf_market", "gdf_market.train", "gdf_market.train.operations"},
    "gdf_market.train.operations": {"gdf_market", "gdf_market.train", "verifier"},
    "ledger": {"gdf_market", "contracts", "gdf_market.train", "gdf_market.blobs"},
    "verifier": {"gdf_market", "contracts", "gdf_market.train", "gdf_market.blobs"},
    "ledger.explorer": {"gdf_market"},  # and the modules in EXPLORER_MODULES
    "gdf_market.node": {
        "gdf_market",
        "contracts",
        "gdf_market.book",
        "gdf_market.train",
        "gdf_market.blobs",
        "ledger",
        "verifier",
    },
}
# beside the store: record keys, the auction and the thresholds that it explains, the form of blocks, and what it takes
# to prove an entry, to verify an export and to execute a block again; no agreement
EXPLORER_MODULES = {
    *("contracts.records", "contracts.state", "contracts.auction", "contracts.parameters"),
    *("ledger.tables", "ledger.store", "ledger.block", "ledger.limits", "ledger.kinds", "ledger.epochs"),
    *("ledger.prove", "ledger.export", "ledger.chain", "ledger.rules", "ledger.effects", "ledger.state_hash"),
}
# import anything; nothing imports them
TOP = ("gdf_market.commands", "gdf_market.demo", "gdf_market.__main__", "gdf_market.train.runner")
FACADE = "gdf_market/__init__.py"  # offers what owners import, loaded when it is asked for

# sans-I/O cores; in ledger/ every file is one unless it is named as disk
LEDGER_DISK = {
    *("store.py", "tables.py", "rows.py", "reading.py", "serving.py", "prices.py"),
    *("export.py", "importing.py", "opening.py", "prove.py", "compare.py"),
}
KERNEL_PURE = ("errors", "units", "codec", "identity", "messages", "vrf", "merkle")  # keystore is disk
NOT_IN_CORES = {
    *("trio", "libp2p", "sqlmodel", "time", "random", "os", "socket"),
    *("asyncio", "datetime", "secrets", "sqlalchemy", "sqlite3", "subprocess", "threading", "uuid"),
}
EXACT_MATH = {"isqrt", "gcd", "lcm", "comb", "prod"}  # of the module math, what stays in the integers


def sources(*patterns: str) -> list[Path]:
    found = sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
    assert found, f"no source matches {patterns}"
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for everything a file imports; ``from a import b`` counts as ``a.b`` if that is a module."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}" if is_module(f"{origin}.{alias.name}") else origin


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def layer(module: str) -> str | None:
    """Return the layer of one of our modules, None for others."""
    layers = [name for name in (*ALLOWED, *TOP) if module == name or module.startswith(name + ".")]
    return max(layers, key=len) if layers else None


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


ALL = sources(*(f"{package}/**/*.py" for package in PACKAGES))
CORES = [
    path
    for path in sources(
        "gdf_market/book/*.py", "contracts/*.py", "ledger/*.py", *(f"gdf_market/{name}.py" for name in KERNEL_PURE)
    )
    if not (path.parent.name == "ledger" and path.name in LEDGER_DISK)
]


def describe(path: Path) -> str:
    return str(path.relative_to(ROOT).as_posix())


def violations(path: Path, tree: ast.AST) -> list[str]:
    """Return the imports of a file that go against the layers."""
    own = layer(module_name(path))
    assert own is not None
    if own in TOP or describe(path) == FACADE:
        return []
    wrong = []
    for line, name in imports(path, tree):
        target = layer(name)
        explorer_may = own == "ledger.explorer" and name in EXPLORER_MODULES
        if target not in (None, own, *ALLOWED[own]) and not explorer_may:
            wrong.append(f"{describe(path)}:{line} imports {name}: {own} may import {sorted(ALLOWED[own])}")
    return wrong


@pytest.mark.parametrize("path", ALL, ids=describe)
def test_imports_point_one_way(path: Path) -> None:
    assert violations(path, parse(path)) == []


@pytest.mark.parametrize("path", CORES, ids=describe)
def test_cores_are_sans_io(path: Path) -> None:
    wrong = [
        f"{describe(path)}:{line} imports {name}"
        for line, name in imports(path, parse(path))
        if name.split(".")[0] in NOT_IN_CORES
    ]
    assert wrong == []


def fractions(tree: ast.AST) -> list[str]:
    """Return what in a tree makes or names a fraction."""
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, float | complex):
            wrong.append(f"line {node.lineno}: literal {node.value}")
        elif isinstance(node, ast.Name) and node.id in ("float", "complex"):
            wrong.append(f"line {node.lineno}: {node.id}")
        elif isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
            wrong.append(f"line {node.lineno}: / makes a float; use //")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "math":
            if node.attr not in EXACT_MATH:
                wrong.append(f"line {node.lineno}: math.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "math":
            wrong += [f"line {node.lineno}: math.{item.name}" for item in node.names if item.name not in EXACT_MATH]
    return wrong


@pytest.mark.parametrize("path", sources("contracts/*.py"), ids=describe)
def test_contracts_use_integers_only(path: Path) -> None:
    tree = parse(path)
    assert fractions(tree) == []
    heavy = {"torch", "numpy", "decimal", "fractions", "statistics"}
    assert [name for _, name in imports(path, tree) if name.split(".")[0] in heavy] == []


@pytest.mark.parametrize(
    ("file", "code", "count"),
    [
        ("gdf_market/units.py", "import contracts.records", 1),
        ("gdf_market/units.py", "from gdf_market.node import limits", 1),
        ("gdf_market/units.py", "def f():\n    from .book import core", 1),
        ("gdf_market/units.py", "import os\nfrom gdf_market import errors", 0),
        ("contracts/state.py", "from ledger.block import Header\nfrom gdf_market.codec import encode", 1),
        ("gdf_market/book/core.py", "import gdf_market.train.unit\nfrom . import errors\nfrom ..blobs import store", 2),
        ("ledger/chain.py", "from contracts import block\nfrom gdf_market.blobs import store\nimport verifier", 1),
        (
            "ledger/explorer/app.py",
            "from contracts.records import Job\nfrom ledger import store\nfrom ledger import tables, replica",
            1,
        ),
        ("ledger/explorer/app.py", "from contracts.block import apply_block", 1),
        ("verifier/gram.py", "from ledger.block import Header", 1),
        ("gdf_market/train/unit.py", "import verifier.gram", 1),
        ("gdf_market/train/unit.py", "from gdf_market.train import operations", 1),
        ("verifier/gram.py", "import gdf_market.train.runner, gdf_market.train.codec", 1),
        ("gdf_market/node/node.py", "import ledger.replica\nfrom gdf_market.commands import main", 1),
        ("gdf_market/commands/init.py", "import ledger.explorer.app, gdf_market.node.node", 0),
    ],
)
def test_the_rule_itself_notices(file: str, code: str, count: int) -> None:
    assert len(violations(ROOT / file, ast.parse(code))) == count


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("a = 1.5", 1),
        ("a = b / c", 1),
        ("a /= 2", 1),
        ("a = float(b)", 1),
        ("def f(x: float) -> None: ...", 1),
        ("a = math.sqrt(2)", 1),
        ("from math import sqrt, isqrt", 1),
        ("a = 1j", 1),
        ("a = b // c + math.isqrt(9)", 0),
    ],
)
def test_fractions_are_noticed(code: str, count: int) -> None:
    assert len(fractions(ast.parse(code))) == count
