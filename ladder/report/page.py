"""One self-contained HTML page: text, tables and Vega-Lite figures with the libraries inside. Loads nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2
import vl_convert
from altair import SCHEMA_VERSION
from markupsafe import Markup

NARROW_COLUMNS = 5  # as many fit a screen of 400 px

Spec = dict[str, Any]  # a Vega-Lite specification


@dataclass(frozen=True)
class Column:
    """One column of a table: where its value stands in a row, how it is titled, and whether it is a number."""

    key: str
    title: str
    number: bool = False


@dataclass(frozen=True)
class Figure:
    title: str
    spec: Spec


@dataclass(frozen=True)
class Block:
    """A part of a page, shown in this order: heading, text, figures side by side where there is room, tables, notes."""

    heading: str = ""
    text: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[str] = ()  # Markup of table(); plain text is escaped
    notes: Sequence[str] = ()


def table(columns: Sequence[Column], rows: Sequence[Mapping[str, str]], caption: str) -> Markup:
    """A table of values as they are; the rows of a wide one turn into cards on a narrow screen."""
    return Markup(_TABLE.render(columns=columns, rows=rows, caption=caption, wide=len(columns) > NARROW_COLUMNS))


def page(title: str, caption: str, context: Sequence[str], blocks: Sequence[Block]) -> str:
    """The whole page; ``caption`` is HTML that says how to read it, ``context`` lines that hold for all of it."""
    script = _vega() if any(block.figures for block in blocks) else None
    return _PAGE.render(title=title, caption=Markup(caption), context=context, blocks=blocks, vega=script)


@cache
def _vega() -> Markup:
    version = SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    return Markup(vl_convert.javascript_bundle(vl_version=version))  # type: ignore[call-arg]  # its stub has no default


def _spec_json(spec: Spec) -> Markup:
    """JSON that may stand in a script element, compact since it holds a figure's data."""
    text = json.dumps(spec, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


_ENVIRONMENT = jinja2.Environment(
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
)
_ENVIRONMENT.filters["spec"] = _spec_json

_TABLE = _ENVIRONMENT.from_string("""\
<table{{ ' class="wide"' | safe if wide }}>
<caption>{{ caption }}</caption>
<thead><tr>
{% for column in columns %}<th{% if column.number %} class="number"{% endif %}>{{ column.title }}</th>{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr>{% for column in columns %}
<td data-title="{{ column.title }}" class="{{ 'number' if column.number else column.key }}
{%- if column.key == 'verdict' %} {{ row.verdict | replace(' ', '-') }}{% endif %}">{{ row[column.key] }}</td>
{%- endfor %}</tr>
{% endfor %}
</tbody>
</table>
""")

_PAGE = _ENVIRONMENT.from_string("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto; padding: 1rem;
  max-width: 1200px; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: .95rem; margin: 0 0 .25rem; }
.caption { max-width: 46rem; }
.context { color: #555; font-size: .87rem; padding-left: 1.1rem; }
.figures { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.figures > div { min-width: 0; }
.figures .chart.vega-embed { width: 100%; padding-right: 0; }
.figures .chart.vega-embed summary { top: -1.9rem; }
section { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #ddd; }
th { font-size: .85rem; font-weight: 600; color: #555; }
.number { text-align: right; white-space: nowrap; }
.faster { color: #00664b; font-weight: 600; }
.slower { color: #a84300; font-weight: 600; }
.faster, .slower, .within-noise, .too-few-rounds { white-space: nowrap; }
.within-noise, .too-few-rounds { color: #666; font-style: italic; }
@media (max-width: 700px) {
  table { font-size: .87rem; }
  th, td { padding-right: .4rem; }
  th.number { white-space: normal; }
  .wide, .wide tbody, .wide tr, .wide td, .wide caption { display: block; }
  .wide thead, .wide td:empty { display: none; }
  .wide tr { border: 1px solid #ddd; border-radius: 4px; padding: .4rem .6rem; margin-bottom: .6rem; }
  .wide td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0;
    text-align: right; white-space: normal; }
  .wide td::before { content: attr(data-title); color: #555; text-align: left; font-weight: 400; font-style: normal; }
}
</style>
{% if vega %}
<script>{{ vega }}</script>
{% endif %}
</head>
<body>
<h1>{{ title }}</h1>
<div class="caption">
{{ caption }}
</div>
<ul class="context">
{% for line in context %}
<li>{{ line }}</li>
{% endfor %}
</ul>
{% for block in blocks %}
<section>
{% if block.heading %}<h2>{{ block.heading }}</h2>{% endif %}

{% for line in block.text %}<p>{{ line }}</p>{% endfor %}

{% if block.figures %}
<div class="figures">
{% set outer = loop.index %}
{% for figure in block.figures %}
<div><h3>{{ figure.title }}</h3><div class="chart" id="chart-{{ outer }}-{{ loop.index }}"></div></div>
<script>vegaEmbed("#chart-{{ outer }}-{{ loop.index }}", {{ figure.spec | spec }},
  {actions: {export: true, source: false, compiled: false, editor: false}});</script>
{% endfor %}
</div>
{% endif %}
{% for item in block.tables %}
{{ item }}
{% endfor %}
{% for line in block.notes %}<p>{{ line }}</p>{% endfor %}

</section>
{% endfor %}
</body>
</html>
""")
