"""Query parameters of the routes. Unknown ones are refused: a misspelt filter must not return everything."""

from __future__ import annotations

from enum import StrEnum

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from api.parameters import MAX_PAGE_SIZE, MAX_POINTS, MIN_POINTS, label_filters
from jobs.archives import ExportForm
from jobs.errors import InvalidArgument, Problem
from jobs.plain import pointer
from jobs.states import JobState
from jobs.views import SampleSort


class Query(BaseModel):
    """Parameters of one route."""

    model_config = ConfigDict(frozen=True, extra="forbid")


async def no_query(request: Request) -> None:
    """For routes without parameters.

    Raises:
        InvalidArgument: some were given.
    """
    problems = [
        Problem(pointer=pointer((name,)), code="unknown_parameter", detail="there is no such parameter")
        for name in request.query_params
    ]
    if problems:
        raise InvalidArgument("this route has no parameters", problems=problems)


NO_QUERY = Depends(no_query)


class ListQuery(Query):
    """Which jobs, and which page of them."""

    state: list[JobState] = Field([], description="Repeat for any of several states.")
    label: list[str] = Field([], max_length=32, description="`key=value`; repeat for jobs that carry all of them.")
    page_size: int = Field(50, ge=1, description=f"Jobs per page; more than {MAX_PAGE_SIZE} counts as {MAX_PAGE_SIZE}.")
    page_token: str | None = Field(None, description="`next_page_token` of the page before, with the same filters.")

    def labels(self) -> dict[str, str]:
        """The label filters as pairs.

        Raises:
            InvalidArgument: one has no `=`, or cannot be looked up.
        """
        without = [label for label in self.label if "=" not in label]
        if without:
            problems = [_no_value(label) for label in without]
            raise InvalidArgument("a label filter is written `key=value`", problems=problems)
        return label_filters({key: value for key, _, value in (label.partition("=") for label in self.label)})


def _no_value(label: str) -> Problem:
    return Problem(pointer="/label", code="bad_format", detail="must be written `key=value`", given=label[:80])


class PageQuery(Query):
    """Which page of a list."""

    page_size: int = Field(
        50, ge=1, description=f"Items per page; more than {MAX_PAGE_SIZE} counts as {MAX_PAGE_SIZE}."
    )
    page_token: str | None = Field(None, description="`next_page_token` of the page before.")


class DatasetQuery(Query):
    """What an uploaded dataset is called."""

    name: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="A name for people. Default: the form's file name. Its end says the format where no type does.",
    )


class DeliveriesQuery(PageQuery):
    """Which delivery attempts."""

    message_id: str | None = Field(None, max_length=64, description="Only attempts of this message.")


class ExportQuery(Query):
    """Which model, in which form."""

    step: str = Field("last", max_length=20, description="`best`, `last`, or the step of a checkpoint.")
    form: ExportForm = Field(
        ExportForm.MERGED,
        description="`merged`: the whole model, adapters merged; `full`: the whole model of a run without adapters; "
        "`adapter`: the adapter of a LoRA run.",
    )


class EventsQuery(Query):
    """Which events."""

    after_seq: int = Field(0, ge=0, lt=2**63, description="Only events behind this one.")
    limit: int = Field(1000, ge=1, le=1000, description="Events per page.")
    page_token: str | None = Field(
        None, description="`next_page_token` of the page before. Null there: no more yet; later ones are `after_seq`."
    )


class MetricsFormat(StrEnum):
    """How metrics are written."""

    JSON = "json"
    CSV = "csv"


class MetricsQuery(Query):
    """Which metrics."""

    keys: list[str] = Field([], description="Metric keys, comma-separated or repeated; all when absent.")
    from_step: int = Field(0, ge=0, lt=2**63, description="First step.")
    max_points: int = Field(
        1000, ge=MIN_POINTS, le=MAX_POINTS, description="Longer runs are thinned out to so many steps."
    )
    format: MetricsFormat = Field(MetricsFormat.JSON, description="`csv` has one row per step.")

    def names(self) -> list[str]:
        """The keys one by one."""
        return [name for part in self.keys for name in part.split(",") if name]


class SamplesQuery(Query):
    """Which stored responses."""

    step: int | None = Field(None, ge=0, lt=2**63, description="A step; by default the latest that has samples.")
    evaluation: bool | None = Field(None, description="Only answers to the evaluation set, or only others.")
    sort: SampleSort = Field(SampleSort.INDEX, description="By score, KL or length; a minus puts the largest first.")
    limit: int = Field(100, ge=1, le=1000, description="Samples per page.")
    page_token: str | None = Field(
        None, description="`next_page_token` of the page before, with the same `step`, `evaluation` and `sort`."
    )


class LogsQuery(Query):
    """Which log lines."""

    tail: int = Field(200, ge=1, le=10_000, description="Lines from the end.")
    attempt: int | None = Field(None, ge=1, lt=2**31, description="An attempt; by default the latest.")
