"""The few pieces of Grafana's dashboard JSON that our dashboards are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

SOURCE: Json = {"type": "prometheus", "uid": "prometheus"}
"""The datasource of provisioning/datasources/prometheus.yml."""

COLUMNS = 24
HEIGHT = 8


@dataclass(frozen=True, kw_only=True)
class Query:
    """One PromQL expression and how its series are called."""

    expr: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One graph: what it shows, in which unit, and how to read it."""

    title: str
    unit: str
    read: str
    queries: list[Query]
    width: int = 8
    kind: str = "timeseries"
    stacked: bool = False
    log_scale: bool = False
    band: tuple[str, str] | None = None
    """Legends of two series; the area between them is filled."""
    lowest: float | None = None
    highest: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A heading and the panels under it."""

    title: str
    panels: list[Panel]


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """A page of rows, with variables to choose what is shown."""

    uid: str
    title: str
    description: str
    rows: list[Row]
    variables: list[Json] = field(default_factory=list)
    span: str = "now-1h"

    def to_json(self) -> Json:
        """The document that Grafana loads."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["ppo"],
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": self.span, "to": "now"},
            "timezone": "",
            "templating": {"list": self.variables},
            "annotations": {"list": []},
            "links": [{"type": "dashboards", "title": "PPO", "tags": ["ppo"], "asDropdown": True, "keepTime": True}],
            "panels": lay_out(self.rows),
        }


def variable(name: str, label: str, query: str) -> Json:
    """A choice of one value of a label: with several runs in one graph a mean and its band cannot be told apart."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 2,
        "multi": False,
        "includeAll": False,
    }


def lay_out(rows: list[Row]) -> list[Json]:
    """Panels in reading order, wrapped at the page's width; ids count from 1."""
    placed: list[Json] = []
    y = 0
    for row in rows:
        placed.append(
            {"type": "row", "title": row.title, "collapsed": False, "panels": [], "gridPos": _at(0, y, 24, 1)}
        )
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + HEIGHT
            placed.append(draw(panel) | {"gridPos": _at(x, y, panel.width, HEIGHT)})
            x += panel.width
        y += HEIGHT
    return [{"id": number} | panel for number, panel in enumerate(placed, 1)]


def draw(panel: Panel) -> Json:
    """One panel without its place."""
    options = _STAT_OPTIONS if panel.kind == "stat" else _LINE_OPTIONS
    bounds = {name: value for name, value in (("min", panel.lowest), ("max", panel.highest)) if value is not None}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.read,
        "datasource": SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "custom": _lines(panel)} | bounds,
            "overrides": _band(*panel.band) if panel.band else [],
        },
        "options": options,
        "targets": [_target(query, index) for index, query in enumerate(panel.queries)],
    }


_LINE_OPTIONS: Json = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
_STAT_OPTIONS: Json = {
    "colorMode": "none",
    "graphMode": "area",
    "textMode": "value_and_name",
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
}


def _lines(panel: Panel) -> Json:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if panel.stacked else 0,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "scaleDistribution": {"type": "log", "log": 10} if panel.log_scale else {"type": "linear"},
    }


def _band(lower: str, upper: str) -> list[Json]:
    """Draw `upper` filled down to `lower`, both without a line."""
    hidden = {"id": "custom.lineWidth", "value": 0}
    fill = [{"id": "custom.fillBelowTo", "value": lower}, {"id": "custom.fillOpacity", "value": 15}, hidden]
    return [
        {"matcher": {"id": "byName", "options": upper}, "properties": fill},
        {"matcher": {"id": "byName", "options": lower}, "properties": [hidden]},
    ]


def _target(query: Query, index: int) -> Json:
    return {
        "refId": chr(ord("A") + index),
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "editorMode": "code",
        "range": True,
    }


def _at(x: int, y: int, width: int, height: int) -> Json:
    return {"x": x, "y": y, "w": width, "h": height}
