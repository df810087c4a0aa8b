"""A change in a module reaches exactly the steps that import it."""

from __future__ import annotations

import ast

import pytest

from ladder import dependencies


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "ladder"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Doc."""\n')
    (folder / "a.py").write_text("from ladder import b\n\n\ndef f():\n    from ladder.c import g\n    return g\n")
    (folder / "b.py").write_text("X = 1\n")
    (folder / "c.py").write_text('def g():\n    """Doc."""\n    return 1\n')
    (folder / "d.py").write_text("Y = 2\n")
    monkeypatch.setattr(dependencies, "ROOT", tmp_path)

    def forget():
        for cached in (dependencies.code_hash, dependencies._tree, dependencies._imports, dependencies._meaning):
            cached.cache_clear()

    def code_hash(module):
        forget()
        return dependencies.code_hash(module)

    code_hash.folder = folder
    yield code_hash
    forget()


def test_imports_are_followed_also_inside_functions(package):
    assert dependencies.closure("ladder.a") == {"ladder.a", "ladder.b", "ladder.c", "ladder"}


@pytest.mark.parametrize("module", ["b", "c"])
def test_a_change_reaches_what_imports_it(package, module):
    before = package("ladder.a")
    (package.folder / f"{module}.py").write_text("Z = 3\n")
    assert package("ladder.a") != before


def test_a_change_reaches_nothing_else(package):
    before = package("ladder.a")
    (package.folder / "d.py").write_text("Y = 3\n")
    assert package("ladder.a") == before


def test_comments_docstrings_and_layout_change_nothing(package):
    before = package("ladder.a")
    (package.folder / "c.py").write_text('# why\ndef g():\n    """Other words."""\n\n    return (1)\n')
    assert package("ladder.a") == before


EVERY_KIND = """
@cached
async def f(a, /, b: int = 1, *c, d=None, **e) -> None:
    with x as y, z:
        return [i async for i in a if (n := i)] or {**e, "k": -1.5e3j} or f"{a!r:>{b}} {b=}" f"{c}"

class C(B, key=...):
    def g(self):
        global h
        try:
            yield (lambda q: q[1:, ::2], b"\\x00", {1, 2}, a if b else d, not a < b <= 1)
        except* (E, F) as error:
            raise error from None
        match self:
            case {"a": 1, **rest} | [_, *_] if rest: pass
            case C(x=None) | -1 | "s": del self.x
"""


def test_every_python_hashes_alike(package):
    """Or results of two hosts could not be compared. The value is that of Python 3.11 and 3.13."""
    (package.folder / "d.py").write_text(EVERY_KIND)
    assert package("ladder.d") == "21841c80820fe465"


def test_a_field_that_a_newer_python_adds_and_nothing_uses_changes_nothing(package, monkeypatch):
    before = package("ladder.a")
    monkeypatch.setattr(ast.FunctionDef, "_fields", (*ast.FunctionDef._fields, "of_python_4"))
    assert package("ladder.a") == before


@pytest.mark.parametrize("other", ["return 1", "return None", "return", "return (1,)", "return 1, []"])
def test_what_is_returned_is_told_apart(package, other):
    (package.folder / "c.py").write_text("def g():\n    return []\n")
    before = package("ladder.a")
    (package.folder / "c.py").write_text(f"def g():\n    {other}\n")
    assert package("ladder.a") != before


def test_a_stack_outside_the_package_is_followed_by_its_path(package, tmp_path):
    outside = tmp_path / "mine.py"
    outside.write_text("from ladder import b\n")
    assert "ladder.b" in dependencies.closure(str(outside))


def test_the_measuring_job_does_not_depend_on_what_is_made_of_it():
    measuring = dependencies.closure("ladder.round", "scripts.run", "ladder.stacks.onnxruntime")
    assert "ladder.measure" in measuring
    for later in (
        "ladder.attribution",
        "ladder.aggregate",
        "ladder.records",
        "ladder.statistics",
        "ladder.audit",
        "ladder.config",
        "ladder.matrix",
        "ladder.steps",
        "ladder.host_faults",
        "ladder.export",
    ):
        assert later not in measuring
    assert "ladder.stacks.openvino" not in measuring


def test_a_script_that_is_not_there_is_no_silent_change():
    with pytest.raises(FileNotFoundError):
        dependencies.code_hash("scripts.misspelt")
