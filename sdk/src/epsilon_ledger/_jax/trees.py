"""Leaves of trees, by their places: a whole tree is not flattened for one of them."""

from collections.abc import Iterator
from typing import Any

import jax

Place = tuple[int, ...]
"""Where a leaf is in a tree: the number of the child at each level."""


def _children(tree: Any) -> tuple[list[Any], Any]:  # noqa: ANN401 - a tree
    """Return the children of a node, and what makes the node of them."""
    if type(tree) is tuple or type(tree) is list:
        return list(tree), type(tree)
    children, structure = jax.tree_util.tree_flatten(tree, is_leaf=lambda node: node is not tree)
    return children, structure.unflatten


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
        children = tree if type(tree) is tuple else _children(tree)[0]
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
