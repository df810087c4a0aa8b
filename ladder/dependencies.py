"""Which of the package's modules a step depends on, and one hash of what they say.

Snakemake sees a script's text only, not what it imports; the hash goes into a rule's params instead.
Comments, docstrings and layout are not part of it, so that explaining code measures nothing again.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent


@cache
def code_hash(*modules: str) -> str:
    """Short hash of the named modules and everything of this package that they import.

    A module is a dotted name below the repository, or the path of a .py file. A stack's missing module counts as
    empty, since it may be planned before it is there; a missing script raises FileNotFoundError.
    """
    for name in modules:
        if name.startswith("scripts.") and not path_of(name).is_file():
            raise FileNotFoundError(path_of(name))
    text = "".join(f"{name}={_meaning(name)};" for name in sorted(closure(*modules)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def closure(*modules: str) -> set[str]:
    """The modules and, transitively, the package's own modules that they import anywhere in their text."""
    found: set[str] = set()
    queue = list(modules)
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += _imports(name)
    return found


def path_of(module: str) -> Path:
    if module.endswith(".py"):
        return Path(module)
    base = ROOT.joinpath(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


@cache
def _tree(module: str) -> ast.Module | None:
    path = path_of(module)
    return ast.parse(path.read_bytes(), str(path)) if path.is_file() else None


@cache
def _imports(module: str) -> tuple[str, ...]:
    tree = _tree(module)
    named: list[str] = []
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(name for name in named if name.partition(".")[0] == "ladder" and path_of(name).is_file())


@cache
def _meaning(module: str) -> str:
    tree = _tree(module)
    if tree is None:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return _dumped(tree)


def _dumped(node: object) -> str:
    """Like ast.dump, but the same in every Python: fields without a value, which newer ones add, are left out."""
    if isinstance(node, list):
        return f"[{','.join(map(_dumped, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    values = [(field, getattr(node, field, None)) for field in node._fields]
    told = [(field, value) for field, value in values if value not in (None, []) or isinstance(node, ast.Constant)]
    return f"{type(node).__name__}({','.join(f'{field}={_dumped(value)}' for field, value in told)})"


def text_hash(folder: str) -> str:
    """Short hash of the files of one of the repository's folders, by name and content."""
    files = sorted(path for path in (ROOT / folder).iterdir() if path.is_file())
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()[:16]
