"""Breaks a function by one change of its syntax tree: any change, or another sign in its comparison."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random

OPPOSITES: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Gt: (ast.Lt,), ast.Lt: (ast.Gt,), ast.GtE: (ast.LtE,), ast.LtE: (ast.GtE,), ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,), ast.Add: (ast.Sub, ast.Mult), ast.Sub: (ast.Add,), ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mod,), ast.Mod: (ast.FloorDiv,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip
"""Maps an operator to those that a bug puts in its place; the way back is always among them."""
BOUNDS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Gt: (ast.GtE,), ast.GtE: (ast.Gt,), ast.Lt: (ast.LtE,), ast.LtE: (ast.Lt,),
}  # fmt: skip
SIGNS: Mapping[str, type[ast.cmpop]] = {">=": ast.GtE, "<": ast.Lt, "==": ast.Eq, "!=": ast.NotEq}
"""Maps the signs between which a wrong one is drawn."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """Holds a broken function and the kind of its bug: operator, bound, off_by_one, name or swapped.

    Where the bug is a wrong sign, the kind is the sign that was right.
    """

    kind: str
    source: str


def list_mutations(source: str) -> list[Mutation]:
    """List all mutations of a function, each once, in a fixed order. Its docstring stays."""
    tree = _FoldNegatives().visit(ast.parse(source))
    found: dict[str, Mutation] = {}
    for place in range(len(list(_nodes(tree)))):
        for kind, broken in _break_node(tree, place):
            text = ast.unparse(broken)
            if text != source:
                found.setdefault(text, Mutation(kind, text))
    return list(found.values())


def draw_mutation(rng: Random, mutations: Sequence[Mutation]) -> Mutation:
    """Draw a kind first, and then one of that kind: some kinds have many more mutations than others."""
    kind = rng.choice(sorted({mutation.kind for mutation in mutations}))
    return rng.choice([mutation for mutation in mutations if mutation.kind == kind])


def draw_other_sign(rng: Random, source: str) -> Mutation:
    """Put another sign into the first comparison of a function; each other one of SIGNS has the same chance."""
    right = find_sign(source)
    return Mutation(right, put_sign(source, rng.choice([sign for sign in SIGNS if sign != right])))


def find_sign(source: str) -> str:
    """Return the sign of a function's first comparison."""
    found = type(_first_comparison(ast.parse(source)).ops[0])
    return next(sign for sign, kind in SIGNS.items() if kind is found)


def put_sign(source: str, sign: str) -> str:
    """Return the function with `sign` in its first comparison."""
    tree = ast.parse(source)
    _first_comparison(tree).ops = [SIGNS[sign]()]
    return ast.unparse(tree)


def _first_comparison(tree: ast.Module) -> ast.Compare:
    return next(node for node in ast.walk(tree) if isinstance(node, ast.Compare))


class _FoldNegatives(ast.NodeTransformer):
    """Makes one number of a minus and a number, so that -1 is next to 0."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                return ast.Constant(-value)
        return self.generic_visit(node)


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    for statement in function.body[1:]:
        yield from ast.walk(statement)


def _break_node(tree: ast.Module, place: int) -> Iterator[tuple[str, ast.Module]]:
    """Yield (kind, tree) for all ways to break the node with number `place`."""

    def copy() -> tuple[ast.Module, ast.AST]:
        whole = deepcopy(tree)
        return whole, list(_nodes(whole))[place]

    original = list(_nodes(tree))[place]
    match original:
        case ast.Compare():
            for number, sign in enumerate(original.ops):
                for kind, others in (("operator", OPPOSITES), ("bound", BOUNDS)):
                    for other_sign in others.get(type(sign), ()):
                        whole, node = copy()
                        node.ops[number] = other_sign()  # type: ignore[attr-defined]
                        yield kind, whole
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp():
            for other_sign in OPPOSITES.get(type(original.op), ()):
                whole, node = copy()
                node.op = other_sign()  # type: ignore[attr-defined]
                yield "operator", whole
            if isinstance(original, ast.BinOp) and isinstance(original.op, ast.Sub | ast.FloorDiv | ast.Mod):
                whole, node = copy()
                node.left, node.right = node.right, node.left  # type: ignore[attr-defined]
                yield "swapped", whole
        case ast.Constant(value=value) if type(value) is int:
            for other in (value - 1, value + 1):
                whole, node = copy()
                node.value = other  # type: ignore[attr-defined]
                yield "off_by_one", whole
        case ast.Call() if len(original.args) > 1:
            whole, node = copy()
            node.args[:2] = node.args[1::-1]  # type: ignore[attr-defined]
            yield "swapped", whole
        case ast.Name(ctx=ast.Load()) if original.id in (names := _local_names(tree)):
            for name in names:
                if name != original.id:
                    whole, node = copy()
                    node.id = name  # type: ignore[attr-defined]
                    yield "name", whole


def _local_names(tree: ast.Module) -> list[str]:
    """List the arguments and variables of the function."""
    names = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    names += [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return sorted(set(names))
