"""Small faults in the source of a module, one at a time: a mutant is the module with one of them.

Logging is not mutated: calls of `log`, and an `if` that contains only such calls. Docstrings, annotations and code for
types are not mutated either, nor are strings: changed names fail at once, and other texts are for people.

Two libraries do the same. mutmut 3.8 skips properties and removes no statements; cosmic-ray 8.7 starts a process for
each mutant, which takes longer here than most tests. With both, the larger part would be left to us: which tests judge
a mutant, and how.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
LOGGERS = {"log", "logger"}
TYPE_ONLY = {"cast", "TypeVar", "ParamSpec", "overload", "assert_never"}

COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
CALCULATED: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
    ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one fault in it."""

    path: str  # from the top of the repository
    where: str  # qualified name of the function or method with the fault; "" outside of functions
    before: str  # the changed lines, with single spaces
    after: str
    nth: int  # among equal mutants in the same place; the first is 1
    lines: range  # lines of the statement with the fault, or of its head
    source: str  # source of the whole module

    @property
    def key(self) -> str:
        """The identity of the mutant while the rest of the module changes."""
        again = f" ({self.nth})" if self.nth > 1 else ""
        return f"{self.path}: {self.where}: {self.before} -> {self.after or 'nothing'}{again}"

    @property
    def module(self) -> str:
        """The dotted name of the module."""
        return self.path.removesuffix(".py").replace("/", ".")


def mutants_of(path: str, root: Path = ROOT) -> list[Mutant]:
    """Return all mutants of a module."""
    source = (root / path).read_text()
    found: list[Mutant] = []
    seen: set[str] = set()
    numbers: Counter[tuple[str, str, str]] = Counter()
    for change in _Changes(source).all():
        before, after, mutated = change.applied(source)
        if mutated in seen:
            continue
        seen.add(mutated)
        where = (change.where, before, after)
        numbers[where] += 1
        found.append(Mutant(path, *where, numbers[where], change.lines, mutated))
    return found


@dataclass(frozen=True, slots=True)
class _Change:
    node: ast.expr | ast.stmt
    text: str  # the replacement for the node
    where: str
    lines: range

    def applied(self, source: str) -> tuple[str, str, str]:
        """Return the changed lines before and after, and the whole new source."""
        lines = source.splitlines(keepends=True)
        node = self.node
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first, last = node.lineno - 1, node.end_lineno
        head = lines[first].encode()[: node.col_offset].decode()
        tail = lines[last - 1].encode()[node.end_col_offset :].decode()
        before = "".join(lines[first:last])
        after = head + self.text + tail
        ast.parse(mutated := "".join([*lines[:first], after, *lines[last:]]))
        return _plain(before), _plain(after), mutated


class _Changes:
    """The possible changes of a module."""

    def __init__(self, source: str) -> None:
        self._tree = ast.parse(source)

    def all(self) -> Iterator[_Change]:
        yield from self._body(self._tree.body, "", "")

    def _body(self, statements: list[ast.stmt], scope: str, where: str) -> Iterator[_Change]:
        """`scope` is the name of the enclosing class or function; `where` is that of the outermost function, if any."""
        for statement in statements:
            if isinstance(statement, ast.ClassDef):
                inner = f"{scope}{statement.name}."
                yield from self._body(statement.body, inner, where)
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._function(statement, scope, where)
            elif not _is_left_alone(statement):
                yield from self._statement(statement, scope, where)

    def _function(self, function: ast.FunctionDef | ast.AsyncFunctionDef, scope: str, where: str) -> Iterator[_Change]:
        if any(isinstance(name, ast.Name) and name.id in TYPE_ONLY for name in function.decorator_list):
            return
        for default in (*function.args.defaults, *function.args.kw_defaults):
            if default is not None:
                yield from self._expression(default, where, _lines(default))
        yield from self._body(function.body, f"{scope}{function.name}.<locals>.", where or f"{scope}{function.name}")

    def _statement(self, statement: ast.stmt, scope: str, where: str) -> Iterator[_Change]:
        lines = _lines(statement)
        for text in _statement_changes(statement, where):
            yield _Change(statement, text, where, lines)
        inner: list[ast.stmt] = []
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt):
                inner.append(child)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                if isinstance(child, ast.match_case) and child.guard is not None:
                    yield from self._condition(child.guard, where)
                inner += child.body
            elif isinstance(child, ast.withitem):
                yield from self._expression(child.context_expr, where, _lines(child.context_expr))
            elif isinstance(child, ast.expr) and child is not getattr(statement, "annotation", None):
                is_simple = not isinstance(statement, ast.If | ast.While | ast.For | ast.AsyncFor | ast.Match)
                yield from self._expression(child, where, lines if is_simple else _lines(child))
        if isinstance(statement, ast.If | ast.While):
            yield from self._condition(statement.test, where)
        yield from self._body(inner, scope, where)

    def _condition(self, test: ast.expr, where: str) -> Iterator[_Change]:
        if not (isinstance(test, ast.Constant) or (isinstance(test, ast.Compare) and len(test.ops) == 1)):
            yield _Change(test, _negated(test), where, _lines(test))

    def _expression(self, node: ast.expr, where: str, lines: range) -> Iterator[_Change]:
        if isinstance(node, ast.Call) and _name(node.func) in TYPE_ONLY:
            return
        for text in _expression_changes(node):
            yield _Change(node, text, where, lines)
        if isinstance(node, ast.JoinedStr):
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._expression(child, where, lines)
            elif isinstance(child, ast.keyword):
                yield from self._expression(child.value, where, lines)
            elif isinstance(child, ast.comprehension):
                yield from self._expression(child.iter, where, lines)
                for test in child.ifs:
                    yield from self._expression(test, where, lines)
                    yield from self._condition(test, where)


def _statement_changes(statement: ast.stmt, where: str) -> Iterator[str]:
    match statement:
        case ast.Return(value=None):
            yield "pass"
        case ast.Return(value=ast.Constant(value=None | bool())):
            pass  # None is falsy like False, and another change turns True into False
        case ast.Return():
            yield "return None"
        case ast.Raise() | ast.Delete():
            yield "pass"
        case ast.Expr(value=ast.Call() | ast.Await()) if where:
            yield "pass"
        case ast.AugAssign(op=op):
            yield "pass"
            if type(op) in CALCULATED:
                target, value = ast.unparse(statement.target), ast.unparse(statement.value)
                yield f"{target} {CALCULATED[type(op)]}= {value}"
        case ast.Assign(targets=targets) if not where.endswith("__init__"):
            # an object without its attribute, or a function without its local variable, would fail at once
            if any(isinstance(part, ast.Attribute | ast.Subscript) for target in targets for part in _parts(target)):
                yield "pass" if all(not _binds(target) for target in targets) else _without_attributes(statement)
        case ast.Break():
            yield "continue"
        case ast.Continue():
            yield "break"


def _expression_changes(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(ops=ops):
            operands = [node.left, *node.comparators]
            for number, op in enumerate(ops):
                parts = [_inner(operands[0])]
                for at, (other, operand) in enumerate(zip(ops, operands[1:], strict=True)):
                    sign = COMPARED[type(op)] if at == number else _sign(other)
                    parts += [sign, _inner(operand)]
                yield f"({' '.join(parts)})"
            if len(ops) == 1 and isinstance(ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                yield _negated(node)
        case ast.BinOp(op=op) if type(op) in CALCULATED and not (_is_text(node.left) or _is_text(node.right)):
            yield f"({_inner(node.left)} {CALCULATED[type(op)]} {_inner(node.right)})"
        case ast.BoolOp(op=op):
            sign = " or " if isinstance(op, ast.And) else " and "
            yield f"({sign.join(_inner(value) for value in node.values)})"
        case ast.UnaryOp(op=ast.Not()):
            yield f"({ast.unparse(node.operand)})"
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield f"({ast.unparse(node.operand)})"
        case ast.IfExp():
            yield f"({_inner(node.body)} if {_negated(node.test)} else {_inner(node.orelse)})"
        case ast.Call(func=ast.Name(id=name)) if name in SWAPPED:
            yield SWAPPED[name] + ast.unparse(node)[len(name) :]
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() | float() as value):
            yield str(value + 1)
            yield f"({value - 1})" if value < 1 else str(value - 1)


def _is_left_alone(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Assert():
            return True
        case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__" | "__match_args__")]):
            return True
        case ast.Assign(value=ast.Call(func=func)) if _root(func) in {"structlog", *LOGGERS}:
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return _only_logs(statement)


def _only_logs(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=logger))):
            return _root(logger) in LOGGERS
        case ast.If(body=body, orelse=orelse):
            return all(_only_logs(inner) for inner in (*body, *orelse))
    return False


def _parts(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple) else [target]


def _binds(target: ast.expr) -> bool:
    """Return whether the target assigns a local name."""
    return any(isinstance(part, ast.Name) for part in _parts(target))


def _without_attributes(statement: ast.Assign) -> str:
    """Turn `a = self.b = c` into `a = c`, and `a, self.b = c` into `a, _ = c`."""
    kept = [target for target in statement.targets if _binds(target)]
    texts = []
    for target in kept:
        names = [ast.unparse(part) if isinstance(part, ast.Name) else "_" for part in _parts(target)]
        texts.append(", ".join(names))
    return " = ".join([*texts, ast.unparse(statement.value)])


def _negated(test: ast.expr) -> str:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"({ast.unparse(test.operand)})"
    return f"(not ({ast.unparse(test)}))"


def _inner(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Constant | ast.Call) else f"({text})"


def _sign(op: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(ast.Name("a"), [op], [ast.Name("b")]))[2:-2]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return _name(node)


def _lines(node: ast.expr | ast.stmt) -> range:
    """Return the lines of a simple statement, or of the head of a compound statement."""
    end = node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    if isinstance(node, ast.stmt) and isinstance(body, list) and body:
        end = max(node.lineno, body[0].lineno - 1)
    return range(node.lineno, end + 1)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"  #.*", "", text)).strip()
