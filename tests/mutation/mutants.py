"""Mutants: what may be changed in a function, one small thing at a time. Pure.

Only what is inside of functions is changed. Left alone are texts and lines of a log, as nothing may match on them, default
values, annotations, and what stands in a `raise`.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple

_SWAPS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception"})
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Mutant(NamedTuple):
    """One change.

    Attributes:
        function: Qualified name, as `code.co_qualname` has it.
        first_line: Of the function's code object, its decorators included.
        before, after: The changed expression or statement as source, by which a list of mutants outlives other edits.
        number: Among those of the module that are alike in all of these.
    """

    module: str
    function: str
    first_line: int
    line: int
    kind: str
    before: str
    after: str
    place: int
    way: int
    number: int = 0

    @property
    def name(self) -> str:
        """For people, and for the list of equivalent ones."""
        again = f" #{self.number + 1}" if self.number else ""
        return f"{self.module}:{self.function}: {self.kind}: `{self.before}` -> `{self.after}`{again}"


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], ast.AST]]]:
    """Everything that may be done to this node: its kind, and a function that makes the new node of a copy."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield "swapped comparison", _swap
    elif isinstance(node, ast.Compare):
        for place in range(len(node.ops)):
            yield "swapped comparison", lambda copied, place=place: _swap(copied, place)
    if isinstance(node, ast.BoolOp):
        for place in range(len(node.values)):
            yield "dropped condition", lambda copied, place=place: _drop(copied, place)
        yield "swapped and/or", _and_or
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negated condition", lambda copied: copied.operand
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "changed constant", lambda copied: ast.Constant(not copied.value)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "off by one", lambda copied: ast.Constant(copied.value + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield "changed sign", _sign
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "removed call", lambda _: ast.Pass()
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.BoolOp):
        yield "negated condition", _negate


def _logs(node: ast.AST) -> bool:
    """Whether a statement only writes a line of a log, whatever the logger's place."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _LEVELS):
        return False
    return ast.unparse(call.func.value).rpartition(".")[2] in ("log", "_log")


def _swap(node: ast.AST, place: int = 0) -> ast.AST:
    node.ops[place] = _SWAPS[type(node.ops[place])]()
    return node


def _drop(node: ast.AST, place: int) -> ast.AST:
    del node.values[place]
    return node.values[0] if len(node.values) == 1 else node


def _and_or(node: ast.AST) -> ast.AST:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return node


def _sign(node: ast.AST) -> ast.AST:
    node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
    return node


def _negate(node: ast.AST) -> ast.AST:
    test = node.test
    plain = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else None
    node.test = plain if plain is not None else ast.UnaryOp(ast.Not(), test)
    return node


class _Walk:
    """Goes through the bodies of functions, in source order."""

    def __init__(self) -> None:
        self.places: list[tuple[ast.AST, str, int]] = []

    def of(self, node: ast.AST, name: str = "", first_line: int = 0) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                self.of(child, f"{name}{child.name}.")
            elif isinstance(child, _FUNCTION):
                inner = f"{name}{child.name}"
                first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                for statement in child.body:
                    self._inside(statement, inner, first)
            elif not first_line:
                self.of(child, name)

    def _inside(self, node: ast.AST, name: str, first_line: int) -> None:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _logs(node):
            return
        if isinstance(node, _FUNCTION):
            for statement in node.body:
                self._inside(statement, name, first_line)
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._inside(node.value, name, first_line)
            return
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)):
            self.places.append((node, name, first_line))
        for child in ast.iter_child_nodes(node):
            self._inside(child, name, first_line)


def _places(tree: ast.Module) -> list[tuple[ast.AST, str, int]]:
    walk = _Walk()
    walk.of(tree)
    return walk.places


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module."""
    found: list[Mutant] = []
    alike: dict[tuple[str, ...], int] = {}
    for place, (node, function, first_line) in enumerate(_places(ast.parse(source))):
        for way, (kind, change) in enumerate(_changes(node)):
            before = _shown(node)
            after = _shown(change(copy.deepcopy(node)))
            number = alike.get((function, kind, before, after), 0)
            alike[function, kind, before, after] = number + 1
            line = getattr(node, "lineno", 0)
            found.append(Mutant(module, function, first_line, line, kind, before, after, place, way, number))
    return found


def _shown(node: ast.AST) -> str:
    """A statement by its first line."""
    if isinstance(node, ast.If | ast.While):
        return f"if {ast.unparse(node.test)}"
    return ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]


def code_of(mutant: Mutant, source: str, path: Path) -> CodeType:
    """The changed function's code.

    Raises:
        LookupError: The source has no such function any more.
    """
    tree = ast.parse(source)
    target = _places(tree)[mutant.place][0]
    change = list(_changes(target))[mutant.way][1]
    changed = change(copy.deepcopy(target))

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return ast.copy_location(changed, node) if node is target else self.generic_visit(node)

    whole = compile(ast.fix_missing_locations(Put().visit(tree)), str(path), "exec")
    for code in codes_in(whole):
        if code.co_qualname == mutant.function and code.co_firstlineno == mutant.first_line:
            return code
    raise LookupError(mutant.name)


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """All code objects inside, of classes and inner functions too."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from codes_in(one)
