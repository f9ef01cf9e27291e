"""Strict YAML 1.2, of which JSON is a part, with the line of each value.

PyYAML resolves plain scalars by YAML 1.1: there `1e-5` is text, `no` is false and `010` is 8. Here the core schema of
YAML 1.2.2 (section 10.3.2) applies, and moments stay text, as in the API.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import yaml

from app.provisioning.errors import ProvisioningError

MAX_BYTES: Final = 4 << 20
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 200_000
"""Values after aliases are expanded: a small file of nested aliases has billions."""

MAX_DIGITS: Final = 20
"""No field takes an integer beyond 64 bits."""

_OR_TEXT: Final = "; if it is text, put it into quotes"
"""A hexadecimal name such as 695e0514 is a number."""

_PREFIX: Final = "tag:yaml.org,2002:"
_KINDS: Final = (
    ("null", re.compile(r"(?:~|null|Null|NULL|)\Z"), "~nN\0"),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), "tTfF"),
    ("int", re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"), "-+0123456789"),
    ("float", re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z"), "-+.0123456789"),
    ("float", re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"), "-+."),
)
"""Tag, pattern and first characters of plain scalars that are not text."""

Path: TypeAlias = tuple[str | int, ...]


@dataclass(slots=True)
class YamlDocument:
    """A parsed document: mappings, lists and scalars of JSON.

    `lines` has the line, from 1, of each mapping's keys and each list's items by their path; () is the document.
    """

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int | None:
        """Return the line of a path, or of the closest place above it."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path)


class _Loader(yaml.SafeLoader):
    """Composes nodes, whose plain scalars have the tags of YAML 1.2; it constructs nothing."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's attribute


class _Dumper(yaml.SafeDumper):
    """Quotes text that a reader of YAML 1.1 or 1.2 would take for another type."""

    # Without a copy, the resolvers would be added to those of every SafeDumper.
    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's attribute
        first: list(found) for first, found in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: object) -> bool:
        """Write equal values out each time."""
        del data
        return True


for _name, _pattern, _first in _KINDS:
    for _kind in (_Loader, _Dumper):
        characters = ["" if each == "\0" else each for each in _first]
        _kind.add_implicit_resolver(f"{_PREFIX}{_name}", _pattern, characters)


def read_yaml(content: bytes, name: str) -> YamlDocument:
    """Parse one YAML document; `name` is the file's, for errors.

    Raises:
        ProvisioningError: it is not UTF-8, not YAML or too large; it has several documents, duplicate keys, keys that
            are not text, tags, or numbers that JSON does not have.
    """
    if len(content) > MAX_BYTES:
        raise ProvisioningError.of_file(name, [(None, f"the file is larger than {MAX_BYTES >> 20} MiB")])
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ProvisioningError.of_file(name, [(line, "the file is not UTF-8")]) from None
    try:
        node = yaml.compose(text, Loader=_Loader)
        document = YamlDocument()
        if node is not None:
            document.value = _Construction(name, document.lines).value_of(node, ())
    except yaml.reader.ReaderError as error:
        line, shown = text.count("\n", 0, error.position) + 1, f"{error.character:#04x}"
        raise ProvisioningError.of_file(name, [(line, f"the character {shown} is not allowed")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = f"not YAML: {error.problem or error.context}"
        raise ProvisioningError.of_file(name, [(mark.line + 1 if mark else None, why)]) from None
    except RecursionError:
        raise ProvisioningError.of_file(name, [(None, f"values are nested more than {MAX_DEPTH} deep")]) from None
    return document


def quotes_hint(error: Mapping[str, Any]) -> str:
    """Return what to add to a validation error of pydantic about text that was written as a number or a truth value."""
    is_plain = error["type"] == "string_type" and isinstance(error["input"], bool | int | float)
    return "; put it into quotes" if is_plain else ""


def write_yaml(value: object) -> str:
    """Write a value of JSON as YAML that `read_yaml` reads as the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Construction:
    """Builds the values of nodes, and notes their lines."""

    def __init__(self, name: str, lines: dict[Path, int]) -> None:
        self._name, self._lines, self._values = name, lines, 0

    def value_of(self, node: yaml.Node, path: Path) -> object:
        """Build the value of a node at a path."""
        self._values += 1
        self._lines.setdefault(path, node.start_mark.line + 1)
        if self._values > MAX_VALUES:
            raise self._error(node, f"the file has more than {MAX_VALUES} values, aliases expanded")
        if len(path) > MAX_DEPTH:
            raise self._error(node, f"values are nested more than {MAX_DEPTH} deep")
        match node.tag.removeprefix(_PREFIX), node:
            case "map", yaml.MappingNode():
                return self._mapping(node, path)
            case "seq", yaml.SequenceNode():
                return [self.value_of(item, (*path, place)) for place, item in enumerate(node.value)]
            case _, yaml.ScalarNode():
                return self._scalar(node)
        raise self._tag_error(node)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise self._error(key_node, "a key must be text; put it into quotes")
            if key in found:
                first = self._lines[*path, key]
                raise self._error(key_node, f"the key {key[:100]!r} is given twice; first on line {first}")
            self._lines[*path, key] = key_node.start_mark.line + 1
            found[key] = self.value_of(value_node, (*path, key))
        return found

    def _scalar(self, node: yaml.Node) -> object:
        text: str = node.value
        match node.tag.removeprefix(_PREFIX):
            case "str":
                if any("\ud800" <= character <= "\udfff" for character in text):
                    raise self._error(node, "the text escapes half of a surrogate pair, which is no character")
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return self._integer(node, text)
            case "float":
                return self._number(node, text)
        raise self._tag_error(node)

    def _integer(self, node: yaml.Node, text: str) -> int:
        if len(text) > MAX_DIGITS:
            raise self._error(node, f"the number {text[:40]} is too large{_OR_TEXT}")
        try:
            return int(text, 0 if text[:2] in {"0o", "0x"} else 10)
        except ValueError:  # `!!int x`
            raise self._error(node, f"{text[:40]!r} is no integer") from None

    def _number(self, node: yaml.Node, text: str) -> float:
        try:
            value = float(text)
        except ValueError:  # `.inf`, or `!!float x`
            value = math.inf
        if not math.isfinite(value):
            raise self._error(node, f"{text[:40]} is not a finite number{_OR_TEXT}")
        return value

    def _tag_error(self, node: yaml.Node) -> ProvisioningError:
        return self._error(node, f"the tag {node.tag[:100]!r} is not supported; write plain YAML")

    def _error(self, node: yaml.Node, message: str) -> ProvisioningError:
        return ProvisioningError.of_file(self._name, [(node.start_mark.line + 1, message)])
