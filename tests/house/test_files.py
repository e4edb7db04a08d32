"""House rules that a linter does not know: small files, one concept each, a reason at the top of each module, a
reason beside each dependency, and nothing that only one machine understands."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from tests.house.tree import ROOT, tracked_files

MAX_LINES = 450
"""The rule is about 400; the rest is leeway for a last docstring."""

RECORDED = ROOT / "tests/corpus/traffic"
"""What real harnesses sent, with invented paths in it."""
BINARY = {".png", ".gguf", ".safetensors", ".ico"}


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked_files()
        if path.suffix == ".py" and (count := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert not long, long


def test_no_module_is_a_drawer() -> None:
    drawers = {"utils", "util", "helpers", "misc", "common"}
    found = [str(path.relative_to(ROOT)) for path in tracked_files() if path.stem in drawers]
    assert not found, found


def test_each_module_says_why_it_exists() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.suffix == ".py"
        and (source := path.read_text()).strip()
        and not ast.get_docstring(ast.parse(source))
    ]
    assert not silent, silent


def foreign_paths(root: Path, home: Path) -> re.Pattern[str]:
    """What a file of the repository may not name: this checkout, the folder it lies in, and anybody's home."""
    places = {str(root), str(home), "/home/[a-z]", "/Users/[A-Z]?[a-z]"}
    if len(root.parts) > 2:
        places.add(str(root.parent))
    names = "|".join(sorted(place if "[" in place else re.escape(place) + r"(?![\w-])" for place in places))
    return re.compile(rf"(?<![\w.\-/~}}*])(?:{names})")


def test_nothing_names_a_path_of_one_machine() -> None:
    pattern = foreign_paths(ROOT, Path.home())
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_files()
        if path.suffix not in BINARY and path != Path(__file__) and path.parent != RECORDED
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line) or (path.suffix in {".md", ".yaml"} and re.search(r"(?<![\w.])/tmp/\w", line))
    ]
    assert not found, found


def test_the_pattern_of_foreign_paths_bites() -> None:
    pattern = foreign_paths(Path("/srv/build/clone"), Path("/root"))
    assert pattern.search("cd /srv/build/clone/docs")
    assert pattern.search("see /srv/build/notes")
    assert pattern.search("open('/root/x')")
    assert not pattern.search("the /srv/builder and /api/rollouts and /rooted")


def test_each_dependency_has_its_reason() -> None:
    """A comment on its line, or, where an extra repeats a package, on the line that named it first."""
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    declared = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    reasoned = {
        re.split(r"[\[<>=~! ]", match.group(1))[0]
        for match in re.finditer(r'^\s*"([^"]+)",\s*# *\S.*$', text, flags=re.MULTILINE)
    }
    bare = [item for item in declared if re.split(r"[\[<>=~! ]", item)[0] not in reasoned]
    assert not bare, bare


def test_named_pages_exist() -> None:
    """A page that a message, a help text or another page sends people to."""
    missing = {
        f"{path.relative_to(ROOT)} names {page}"
        for path in tracked_files()
        if path.suffix in {".py", ".md", ".yaml"}
        for page in re.findall(r"docs/[\w-]+\.md", path.read_text())
        if not (ROOT / page).is_file()
    }
    assert not missing, sorted(missing)
