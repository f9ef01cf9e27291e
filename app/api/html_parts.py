"""Parts of self-contained HTML pages, with all values escaped."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape


def paragraph(text: str) -> str:
    """Render a paragraph."""
    return f"<p>{escape(text)}</p>"


def heading(text: str, level: int = 2) -> str:
    """Render a heading."""
    return f"<h{level}>{escape(text)}</h{level}>"


def table(facts: Mapping[str, object]) -> str:
    """Render facts by name, one a row."""
    rows = "".join(
        f'<tr><th scope="row">{escape(str(name))}</th><td>{escape(str(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table>{rows}</table>"


def rows(heads: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Render lines of cells under heads."""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"


def bullets(items: Sequence[str]) -> str:
    """Render a list."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def link(text: str, address: str) -> str:
    """Render a link."""
    return f'<a href="{escape(address)}">{escape(text)}</a>'


def download(text: str, name: str, content: str, media_type: str) -> str:
    """Render a link that saves what the page itself contains."""
    data = b64encode(content.encode()).decode()
    return f'<a download="{escape(name)}" href="data:{escape(media_type)};base64,{data}">{escape(text)}</a>'


def code(text: str) -> str:
    """Render a block of code, which scrolls by the keyboard."""
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'
