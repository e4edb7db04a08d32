"""The direction of knowledge between the packages: proxy, trainer and harness adapters meet only in the database and
over HTTP, so that each runs, scales and crashes alone. Read from the syntax tree, so that an import inside a function
counts as well."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.house.tree import ROOT, python_files

KNOWS: dict[str, set[str]] = {
    "spanlog": set(),
    "proxy": {"spanlog"},
    "trainer": {"spanlog"},
    "harness_adapters": set(),
    "singletree": {"spanlog", "proxy", "trainer", "harness_adapters"},
}
"""Package -> the other packages of ours that it may import."""

HEAVY = {"torch", "transformers", "vllm"}
"""Only the trainer and the demo may import these: the proxy has to start in a second."""


def imported(tree: ast.AST) -> set[str]:
    """Top-level names of the modules that a file imports, those given as text to ``import_module`` included."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                names.add(str(node.args[0].value).partition(".")[0])
    return names


@pytest.mark.parametrize("package", KNOWS)
def test_a_package_imports_only_what_it_may_know(package: str) -> None:
    foreign = set(KNOWS) - KNOWS[package] - {package}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in python_files(package)
        for name in sorted(imported(ast.parse(path.read_text())) & foreign)
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("package", ["spanlog", "proxy", "harness_adapters"])
def test_only_the_trainer_needs_torch(package: str) -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in python_files(package)
        if imported(ast.parse(path.read_text())) & HEAVY
    ]
    assert not wrong, wrong


def test_help_loads_no_subcommand() -> None:
    names = sorted(HEAVY | {"proxy", "trainer", "spanlog", "harness_adapters"})
    script = f"import sys, singletree.cli; print([n for n in {names!r} if n in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert result.stdout.strip() == "[]"
