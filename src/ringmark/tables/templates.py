"""Templates: strict (an unknown name is an error), sandboxed, no arithmetic; filters lay the tables out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from ringmark.errors import UserError
from ringmark.tables import formpage, markdown

# What a template can make Python say: `{{ 1 / 0 }}`, a call of what is no function, a name that is not there.
_MISTAKES = (TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError)


def load(folder: Path) -> SandboxedEnvironment:
    """The environment of the templates in a folder."""
    if not folder.is_dir():
        raise UserError(f"no templates are in {folder}: run in a checkout of ringmark, or give --templates")
    environment = SandboxedEnvironment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown: the filters below escape
    )
    environment.filters.update(
        markdown=markdown.table_text,
        markdown_grid=lambda lines, header: "\n".join(markdown.grid_text(header, lines, words=True)),
        prose=markdown.escape,
        rules=formpage.rules_text,
        with_unit=_with_unit,
    )
    return environment


def _with_unit(text: str, unit: str) -> str:
    """A number with its unit; a word stands alone."""
    return f"{text} {unit}" if text.replace(".", "", 1).isdecimal() else text


def fill(environment: SandboxedEnvironment, template: str, **values: Any) -> str:
    """A template's text; what is wrong with a template is told in one sentence."""
    try:
        return environment.get_template(template).render(**values)
    except UserError:
        raise
    except _MISTAKES as error:
        raise UserError(
            f"template {template}: {str(error) or type(error).__name__}; correct the template"
        ) from error
