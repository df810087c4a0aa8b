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

from ladder.report.text import NBSP, unbroken

NARROW_COLUMNS = 5  # as many fit a screen of 400 px
CARDS = {"wide": 700, "widest": 1000}  # px of a window up to which rows of such a table are cards
WIDE_COLUMNS = 8  # as many fit a window of 700 px
OPEN_PARTS = 8  # a page of more parts with figures shows them folded but for the first

Spec = dict[str, Any]  # a Vega-Lite specification


@dataclass(frozen=True)
class Column:
    """One column of a table: where its value stands in a row, how it is titled, and whether it is a number."""

    key: str
    title: str
    number: bool = False


@dataclass(frozen=True)
class Figure:
    """A drawing with its title above and what it says in words below that."""

    title: str
    spec: Spec
    text: str = ""


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
    width = "widest" if len(columns) > WIDE_COLUMNS else "wide" if len(columns) > NARROW_COLUMNS else ""
    return Markup(_TABLE.render(columns=columns, rows=rows, caption=caption, width=width))


def held(columns: Sequence[Column], rows: Sequence[Mapping[str, str]]) -> list[Column]:
    """The columns in which any of the rows has something."""
    return [column for column in columns if any(row[column.key] for row in rows)]


def page(title: str, caption: str, context: Sequence[str], blocks: Sequence[Block]) -> str:
    """The whole page; ``caption`` is HTML that says how to read it, ``context`` lines that hold for all of it.

    A figure is drawn when it comes near the window: a page may hold hundreds.
    """
    drawn = any(block.figures for block in blocks)
    folded = drawn and len(blocks) > OPEN_PARTS
    script = _vega() if drawn else None
    return _PAGE.render(
        title=title, caption=Markup(caption), context=context, blocks=blocks, vega=script, folded=folded, style=STYLE
    )


def start(title: str, context: Sequence[str], links: Mapping[str, str], blocks: Sequence[Block]) -> str:
    """What Snakemake's report opens with, to stand inside a page of its own: no figures, no scripts.

    ``links`` are addresses by text.
    """
    return _START.render(title=title, context=context, links=links, blocks=blocks, style=STYLE)


@cache
def _vega() -> Markup:
    version = SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    return Markup(vl_convert.javascript_bundle(vl_version=version))  # type: ignore[call-arg]  # its stub has no default


def _cell(text: str, number: bool) -> str:
    """A cell that no line breaks inside a figure."""
    return unbroken(text) if number else text.replace(" %", f"{NBSP}%")


def _spec_json(spec: Spec) -> Markup:
    """JSON that may stand in a script element, compact since it holds a figure's data."""
    text = json.dumps(spec, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


_ENVIRONMENT = jinja2.Environment(
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
)
_ENVIRONMENT.filters["spec"] = _spec_json
_ENVIRONMENT.filters["cell"] = _cell

_TABLE = _ENVIRONMENT.from_string("""\
<div class="scroll"><table{% if width %} class="{{ width }}"{% endif %}>
<caption>{{ caption }}</caption>
<thead><tr>
{% for column in columns %}<th{% if column.number %} class="number"{% endif %}>{{ column.title }}</th>{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr>{% for column in columns %}
<td data-title="{{ column.title }}" class="{{ 'number' if column.number else column.key }}
{%- if column.key == 'verdict' %} {{ row.verdict | replace(' ', '-') }}{% endif %}">
{{- row[column.key] | cell(column.number) }}</td>
{%- endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
""")

# everything inside .ladder, since Snakemake's report has a style of its own
STYLE = Markup(
    """\
:is(body, div).ladder { color-scheme: light; font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  overflow-wrap: break-word; }
.ladder h1 { font-size: 1.5rem; font-weight: 700; margin: 0 0 .5rem; }
.ladder h2 { font-size: 1.15rem; font-weight: 700; margin: 1.5rem 0 .5rem; }
.ladder h3 { font-size: .95rem; font-weight: 700; margin: 0 0 .25rem; }
.ladder p { margin: .5rem 0; }
.ladder .caption, .ladder section > p { max-width: 54rem; }
.ladder .context { list-style: disc; color: #555; font-size: .87rem; padding-left: 1.1rem; margin: .5rem 0; }
.ladder .links a { color: #0060a0; text-decoration: underline; margin-right: 1rem; }
.ladder summary h2 { display: inline-block; margin: .35rem 0; }
.ladder summary { cursor: pointer; }
.ladder .figures { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.ladder .figures > div { min-width: 0; }
.ladder .figures h3, .ladder .figures p { padding-right: 2.3rem; }
.ladder .figures p { margin: 0 0 .25rem; font-size: .93rem; }
.ladder .chart { min-height: 200px; }
.ladder .chart.vega-embed { width: 100%; padding-right: 0; }
.ladder .chart.vega-embed summary { top: -1.9rem; }
.ladder .scroll { overflow-x: auto; }
.ladder table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; font-variant-numeric: tabular-nums; }
.ladder caption { text-align: left; font-weight: 600; padding: .25rem 0; }
.ladder th, .ladder td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0;
  border-bottom: 1px solid #ddd; }
.ladder th { font-size: .85rem; font-weight: 600; color: #555; }
.ladder .number { text-align: right; }
.ladder td.ran_in { min-width: 8.5rem; }
.ladder td:is(.value, .name, .reason, .log) { overflow-wrap: anywhere; min-width: 8rem; }
.ladder :is(.faster, .fastest) { color: #00664b; font-weight: 600; }
.ladder .slower, .ladder .warn, .ladder .exclude, .ladder .failed { color: #a84300; font-weight: 600; }
.ladder .verdict, .ladder .scope { white-space: nowrap; }
@media (min-width: 1300px) { .ladder .step, .ladder .engine { white-space: nowrap; } }
.ladder .may-be-fastest { color: #00664b; font-style: italic; }
.ladder .within-noise, .ladder .too-few-rounds, .ladder .no-result { color: #666; font-style: italic; }
@media (max-width: 700px) {
  .ladder table { font-size: .87rem; }
  .ladder th, .ladder td { padding-right: .4rem; }
}
"""
    + "".join(
        f"""\
@media (max-width: {pixels}px) {{
  .ladder .{width}, .ladder .{width} :is(tbody, tr, td, caption) {{ display: block; }}
  .ladder .{width} thead, .ladder .{width} td:empty {{ display: none; }}
  .ladder .{width} tr {{ border: 1px solid #ddd; border-radius: 4px; padding: .4rem .6rem; margin-bottom: .6rem; }}
  .ladder .{width} td {{ display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0;
    min-width: 0; text-align: right; white-space: normal; }}
  .ladder .{width} td::before {{ content: attr(data-title); color: #555; text-align: left; font-weight: 400;
    font-style: normal; overflow-wrap: normal; }}
}}
"""
        for width, pixels in CARDS.items()
    )
)

_BLOCKS = """\
<ul class="context">
{% for line in context %}
<li>{{ line }}</li>
{% endfor %}
</ul>
{% for block in blocks %}
{% set outer = loop.index %}
<section>
{% if folded and block.heading %}<details{{ ' open' if loop.first }}><summary><h2>{{ block.heading }}</h2></summary>
{% elif block.heading %}<h2>{{ block.heading }}</h2>
{% endif %}
{% for line in block.text %}<p>{{ line }}</p>{% endfor %}

{% if block.figures %}
<div class="figures">
{% for figure in block.figures %}
<div><h3>{{ figure.title }}</h3>
{% if figure.text %}<p>{{ figure.text }}</p>{% endif %}

<div class="chart" id="chart-{{ outer }}-{{ loop.index }}"></div></div>
<script type="application/json" id="chart-{{ outer }}-{{ loop.index }}-spec">{{ figure.spec | spec }}</script>
{% endfor %}
</div>
{% endif %}
{% for item in block.tables %}
{{ item }}
{% endfor %}
{% for line in block.notes %}<p>{{ line }}</p>{% endfor %}

{% if folded and block.heading %}</details>{% endif %}

</section>
{% endfor %}
"""

_PAGE = _ENVIRONMENT.from_string(
    """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { margin: 0 auto; padding: 1rem; max-width: 1280px; }
{{ style }}
</style>
{% if vega %}
<script>{{ vega }}</script>
{% endif %}
</head>
<body class="ladder">
<h1>{{ title }}</h1>
<div class="caption">
{{ caption }}
</div>
"""
    + _BLOCKS
    + """\
{% if vega %}
<script>
const near = new IntersectionObserver(entries => {
  for (const { target } of entries.filter(entry => entry.isIntersecting)) {
    near.unobserve(target);
    vegaEmbed(target, JSON.parse(document.getElementById(target.id + "-spec").textContent),
      {actions: {export: true, source: false, compiled: false, editor: false}});
  }
}, {rootMargin: "800px"});
document.querySelectorAll(".chart").forEach(chart => near.observe(chart));
</script>
{% endif %}
</body>
</html>
"""
)

_START = _ENVIRONMENT.from_string(
    """\
<style>
{{ style }}
</style>
<div class="ladder">
<h1>{{ title }}</h1>
<p class="links">{% for text, address in links.items() %}<a href="{{ address }}">{{ text }}</a> {% endfor %}</p>
{% set folded = False %}
"""
    + _BLOCKS
    + "</div>\n"
)
