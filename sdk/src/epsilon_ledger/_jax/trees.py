"""Leaves of trees, by their places: a whole tree is not flattened for one of them."""

import operator
from collections.abc import Iterator
from typing import Any, Final

import jax

Place = tuple[int, ...]
"""Where a leaf is in a tree: the number of the child at each level."""


_LIKE_TUPLES: Final[dict[type, bool]] = {tuple: True, list: True}
"""Types whose children are their elements, tuples of names among them; False: other types are registered with JAX."""


def _is_like_tuple(tree: Any) -> bool:  # noqa: ANN401 - a tree
    """Return whether a node's children are its elements, without JAX, which takes longer."""
    kind = type(tree)
    known = _LIKE_TUPLES.get(kind)
    if known is None:
        known = isinstance(tree, tuple) and hasattr(kind, "_fields")
        if known:
            children, _ = _flatten(tree)
            known = len(children) == len(tree) and all(map(operator.is_, children, tree))
        _LIKE_TUPLES[kind] = known
    return known


def _flatten(tree: Any) -> tuple[list[Any], Any]:  # noqa: ANN401 - as above
    children, structure = jax.tree_util.tree_flatten(tree, is_leaf=lambda node: node is not tree)
    return children, structure.unflatten


def _children(tree: Any) -> tuple[list[Any], Any]:  # noqa: ANN401 - as above
    """Return the children of a node, and what makes the node of them."""
    if _is_like_tuple(tree):
        return list(tree), getattr(type(tree), "_make", type(tree))
    return _flatten(tree)


def walk(tree: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:  # noqa: ANN401 - a tree and its nodes
    """Yield the places and the nodes of a tree."""
    yield place, tree
    children, _ = _children(tree)
    for index, child in enumerate(children):
        if child is not tree:
            yield from walk(child, (*place, index))


def get(tree: Any, place: Place) -> Any:  # noqa: ANN401 - a tree and its leaf
    """Return the leaf at a place; None if the tree has no such place any more."""
    for index in place:
        children = tree if _is_like_tuple(tree) else _flatten(tree)[0]
        if index >= len(children):
            return None
        tree = children[index]
    return tree


def put(tree: Any, place: Place, leaf: Any) -> Any:  # noqa: ANN401 - as above
    """Return a tree with another leaf; nodes that do not lead to it stay the same objects."""
    if not place:
        return leaf
    children, make = _children(tree)
    children[place[0]] = put(children[place[0]], place[1:], leaf)
    return make(children)
