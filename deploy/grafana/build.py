"""Write the dashboards that Grafana loads: `python -m deploy.grafana.build`, from the repository's root."""

from __future__ import annotations

import json
from pathlib import Path

from deploy.grafana import ppo_run, ppo_service

FOLDER = Path(__file__).parent / "dashboards"
DASHBOARDS = {"ppo-run.json": ppo_run.DASHBOARD, "ppo-service.json": ppo_service.DASHBOARD}


def documents() -> dict[str, str]:
    """File name and text of every dashboard."""
    return {name: json.dumps(page.to_json(), indent=1) + "\n" for name, page in DASHBOARDS.items()}


if __name__ == "__main__":
    for file_name, text in documents().items():
        (FOLDER / file_name).write_text(text, encoding="utf-8")
