"""datasets add, ls, show, rm: uploaded prompts and texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from jobs.views import ColumnView, DatasetView
from ppo_client import output
from ppo_client.client import PPOClient
from ppo_client.commands.options import Json, Key, Url, console
from ppo_client.curves import size

app = typer.Typer(help="Upload prompts, and name them in specs by their id.", no_args_is_help=True)

DatasetId = Annotated[str, typer.Argument(metavar="DATASET", help="The dataset's id.")]


@app.command()
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .jsonl, .csv or .parquet file.")],
    name: Annotated[str | None, typer.Option(help="A name for people. Default: the file's.")] = None,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Upload a file. Every row is checked; the same file again gives the dataset there is."""
    with PPOClient(url, key) as client:
        dataset = client.add_dataset(file, name=name)
    if as_json:
        output.print_json(dataset)
        return
    fields = [column.name for column in dataset.columns if column.first_row_not_text is None]
    console.print(f"[bold]{dataset.id}[/] has {dataset.rows:,} rows", soft_wrap=True)
    if fields:
        hint = f'in a spec: "prompts": {{"dataset": {{"id": "{dataset.id}", "field": "{fields[0]}"}}}}'
        console.print(Text(hint, style="dim"), soft_wrap=True)


@app.command("ls")
def list_datasets(
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 20,
    url: Url = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List datasets, newest first."""
    with PPOClient(url, key) as client:
        pages = client.datasets(page_size=min(limit, 200))
        found = [dataset for dataset, _ in zip(pages, range(limit), strict=False)]
    if as_json:
        output.print_json(found)
    elif found:
        table = output.table("id", "name", "format", "rows", "size", "columns")
        for dataset in found:
            columns = ", ".join(column.name for column in dataset.columns)
            cells = dataset.format, f"{dataset.rows:,}", size(dataset.size_bytes)
            table.add_row(dataset.id, Text(output.one_line(dataset.name)), *cells, Text(output.one_line(columns)))
        console.print(table)
    else:
        console.print("no datasets")


@app.command()
def show(dataset: DatasetId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Show a dataset's columns and first rows."""
    with PPOClient(url, key) as client:
        view = client.dataset(dataset)
    if as_json:
        output.print_json(view)
    else:
        _show(view)


@app.command("rm")
def remove(dataset: DatasetId, url: Url = None, key: Key = None, as_json: Json = False) -> None:
    """Delete a dataset; refused while a job needs it."""
    with PPOClient(url, key) as client:
        client.delete_dataset(dataset)
    if as_json:
        output.print_json({"id": dataset, "deleted": True})
    else:
        console.print(f"{dataset} is deleted")


def _show(view: DatasetView) -> None:
    heading = f"{output.one_line(view.name)}: {view.rows:,} rows, {view.format}, sha256 {view.sha256}"
    console.print(Text(heading), soft_wrap=True)
    table = output.table("column", "holds", "rows", "longest", "as a prompt")
    for column in view.columns:
        name, kinds = Text(output.one_line(column.name)), ", ".join(column.kinds)
        table.add_row(name, kinds, f"{column.rows:,}", f"{column.longest_characters:,}", _fitness(column))
    console.print(table)
    for row in view.preview:
        console.print(Text(output.one_line(str(row)), style="dim"), soft_wrap=True)


def _fitness(column: ColumnView) -> str:
    if column.first_row_not_text is None:
        return "yes"
    if column.first_row_not_chat is None:
        return "with chat"
    return f"no: row {min(column.first_row_not_text, column.first_row_not_chat)}"
