"""Small faults for one Python file: a swapped comparison, an off-by-one, ``any`` for ``all``, a call left out.

A mutant is a replacement of one range of the source text, so that everything else stays as it was. Left alone are
texts, type annotations, decorators, logging, and module constants in capitals: their exact value is a choice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.LShift: ">>",
    ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.Pow: "*",
}  # fmt: skip
CALLS = {"any": "all", "all": "any", "min": "max", "max": "min", "bisect_right": "bisect_left"}
LOGGERS = ("log", "logger")


@dataclass(frozen=True)
class Mutant:
    """``source[start:end]`` becomes ``text``."""

    path: str
    line: int
    lines: range
    """Those of the smallest statement around it that holds no other statements, or of the head of a larger one."""
    start: int
    end: int
    text: str
    what: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self.found: list[Mutant] = []
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._texts = source.splitlines(keepends=True)
        self._statement = range(0)

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, ast.stmt):
            super().visit(node)
            return
        outer, body = self._statement, getattr(node, "body", None)
        end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        self._statement = range(node.lineno, max(end, node.lineno) + 1)
        super().visit(node)
        self._statement = outer

    # -- positions -------------------------------------------------------------------------------------------

    def _offset(self, line: int, column: int) -> int:
        """Index into the text; ``ast`` counts columns in UTF-8 bytes."""
        return self._lines[line - 1] + len(self._texts[line - 1].encode()[:column].decode())

    def _range(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno or 0, node.end_col_offset or 0),
        )

    def _text(self, node: ast.AST) -> str:
        start, end = self._range(node)
        return self.source[start:end]

    def _replace(self, node: ast.AST, text: str) -> None:
        start, end = self._range(node)
        self._add(node, start, end, text)

    def _add(self, node: ast.AST, start: int, end: int, text: str) -> None:
        before, line = " ".join(self.source[start:end].split()), self.source.count("\n", 0, start) + 1
        what = f"{before!r} -> {' '.join(text.split())!r}"
        self.found.append(Mutant(self.path, line, self._statement, start, end, text, what))

    def _operator(self, node: ast.AST, left: ast.AST, right: ast.AST, text: str) -> None:
        """Put ``text`` for the operator between two operands, and keep the parentheses around them."""
        start, end = self._range(left)[1], self._range(right)[0]
        between = self.source[start:end]
        closing = len(between) - len(between.lstrip(") \n"))
        opening = len(between) - len(between.rstrip("( \n"))
        self._add(node, start + closing, end - opening, text)

    # -- what is left alone ------------------------------------------------------------------------------------

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not _is_constant(node.target):
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not _is_constant(node.targets[0]):
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Annotations of parameters."""

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if any("property" not in self._text(one) for one in node.decorator_list if "overload" in self._text(one)):
            return
        self.visit(node.args)
        for statement in node.body:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """An assertion only repeats what is known."""

    # -- faults ------------------------------------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
            self._operator(node, left, right, f" {COMPARISONS[type(operator)]} ")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = ARITHMETIC.get(type(node.op))
        if text is not None and not any(isinstance(side, ast.JoinedStr) for side in (node.left, node.right)):
            self._operator(node, node.left, node.right, f" {text} ")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        text = ARITHMETIC.get(type(node.op))
        if text is not None:
            self._operator(node, node.target, node.value, f" {text}= ")
            self._operator(node, node.target, node.value, " = ")
        self.visit(node.value)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        text = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._operator(node, left, right, f" {text} ")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self._replace(node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._replace(node, str(not value))
        elif isinstance(value, int):
            self._replace(node, str(value + 1))
        elif isinstance(value, float):
            self._replace(node, repr(value * 2 if value else 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            self._replace(node.func, CALLS[node.func.id])
        if not self._is_log(node):
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and not self._is_log(call):
            self._replace(node, "pass")
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if not isinstance(node.test, ast.Compare):
            self._replace(node.test, f"(not ({self._text(node.test)}))")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        if not isinstance(node.test, ast.Compare):
            self._replace(node.test, f"(not ({self._text(node.test)}))")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._replace(node, "return None")
        self.generic_visit(node)

    def _is_log(self, node: ast.Call) -> bool:
        """``log.info(…)`` of the logging module."""
        function = node.func
        return (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id in LOGGERS
        )


def _is_constant(target: ast.AST) -> bool:
    """A module's name in capitals."""
    return isinstance(target, ast.Name) and target.id.isupper()


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """All mutants of a file that Python can still compile."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    for mutant in finder.found:
        try:
            compile(mutant.applied(source), path, "exec")
        except SyntaxError:
            continue
        yield mutant
