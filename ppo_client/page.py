"""The report as one HTML page that needs nothing else: no script, no font, no image from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from string import Template

from jobs.states import JobState
from jobs.views import JobEventView, JobView, SampleView
from ppo_client.comparison import Comparison

_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>$name - PPO run</title>
<style>
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; background: #fff; color: #111827;
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; } h2 { margin: 2.5rem 0 .75rem; font-size: 1.1rem; }
.id { color: #6b7280; font: 13px ui-monospace, monospace; }
.state { display: inline-block; margin-left: .5rem; padding: .1rem .6rem; border-radius: 1rem; font-size: .8rem;
         font-weight: 600; vertical-align: .25em; color: #fff; background: $state_color; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem; margin: 1.5rem 0 0; }
dl div { padding: .6rem .8rem; border: 1px solid #e5e7eb; border-radius: .5rem; }
dt { color: #6b7280; font-size: .8rem; }
dd { margin: 0; font-size: 1.05rem; font-weight: 600; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; }
table { width: 100%; border-collapse: collapse; table-layout: fixed; }
th { padding: .4rem .6rem; text-align: left; color: #6b7280; font-size: .8rem; font-weight: 600; }
td { padding: .6rem; border-top: 1px solid #e5e7eb; vertical-align: top; overflow-wrap: anywhere;
     white-space: pre-wrap; }
th:first-child, td:first-child { width: 22%; } .none { color: #9ca3af; }
.answer { display: flex; align-items: baseline; gap: .75rem; }
.score { color: #6b7280; flex: none; font: 13px ui-monospace, monospace; }
.up { color: #047857; font-weight: 700; } .down { color: #b91c1c; font-weight: 700; }
.error { margin-top: 1.5rem; padding: .8rem 1rem; border-left: 4px solid #dc2626; background: #fef2f2; }
p.note { color: #6b7280; font-size: .85rem; }
pre { padding: 1rem; overflow: auto; border-radius: .5rem; background: #f9fafb; font-size: 12.5px;
      white-space: pre-wrap; }
</style></head><body>
<h1>$name<span class="state">$state</span></h1><div class="id">$id</div>
$error<dl>$facts</dl>
<h2>Curves</h2>
$plots
$warnings<h2>Before and after</h2>
$samples
<h2>Spec</h2>
<details><summary>All settings of this run, defaults filled in</summary><pre>$spec</pre></details>
</body></html>
""")

_STATE_COLORS = {JobState.SUCCEEDED: "#047857", JobState.FAILED: "#b91c1c", JobState.CANCELLED: "#7e22ce"}


def render(
    job: JobView,
    facts: Sequence[tuple[str, str]],
    plots_svg: str,
    compared: Comparison,
    warnings: Sequence[JobEventView] = (),
) -> str:
    """The page's text."""
    return _PAGE.substitute(
        name=escape(job.name),
        id=escape(job.id),
        state=escape(job.state),
        state_color=_STATE_COLORS.get(job.state, "#1d4ed8"),
        error=_error(job),
        facts="".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts),
        # An <svg> inside HTML has no XML declaration and no doctype.
        plots=plots_svg[plots_svg.index("<svg") :],
        warnings=_warnings(warnings),
        samples=_samples(compared),
        spec=escape(json.dumps(job.spec, indent=2, ensure_ascii=False)),
    )


def _error(job: JobView) -> str:
    if job.error is None:
        return ""
    error = job.error
    heading = f"<b>{escape(error.code)}</b> ({escape(error.category)}): {escape(error.message)}"
    advice = f"<br>{escape(error.suggestion)}" if error.suggestion else ""
    tail = f"<pre>{escape(error.log_tail)}</pre>" if error.log_tail else ""
    return f'<div class="error">{heading}{advice}{tail}</div>\n'


def _warnings(events: Sequence[JobEventView]) -> str:
    if not events:
        return ""
    rows = "".join(f"<tr><td>{_clock(event)}</td><td>{escape(event.message)}</td></tr>" for event in events)
    return f"<h2>Guards</h2>\n<table>{rows}</table>\n"


def _clock(event: JobEventView) -> str:
    return event.time.strftime("%Y-%m-%d %H:%M:%S UTC")


def _samples(compared: Comparison) -> str:
    pairs = compared.pairs
    if not pairs:
        return '<p class="note">No responses were stored.</p>'
    rows = "\n".join(
        f"<tr><td>{escape(pair.prompt)}</td>{_cell(pair.before, None)}{_cell(pair.after, pair.before)}</tr>"
        for pair in pairs
    )
    return (
        f"<table><tr><th>Prompt</th><th>{escape(compared.before)}</th><th>{escape(compared.after)}</th></tr>\n"
        f"{rows}\n</table>\n"
        '<p class="note">Of each prompt\'s stored responses, the one with the median score. '
        "The number is the score, before any scaling.</p>"
    )


def _cell(sample: SampleView | None, before: SampleView | None) -> str:
    if sample is None:
        return '<td class="none">none stored</td>'
    change = 0.0 if before is None else sample.score - before.score
    style = "up" if change > 0 else "down" if change < 0 else ""
    score = f'<span class="score {style}">{sample.score:+.2f}</span>'
    return f'<td><div class="answer">{score}<span>{escape(sample.response.strip())}</span></div></td>'
