"""What is asked of keys and quotas: documents that REST, gRPC and the client share."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from jobs.errors import InvalidArgument
from jobs.principal import WORKING_SCOPES, Scope
from jobs.problems import check

M = TypeVar("M", bound=BaseModel)

MAX_JOBS = 1_000_000
MAX_STORED_BYTES = 1 << 50
MAX_KEY_SECONDS = 10 * 365 * 86400


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable characters only")
    return text


Owner = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_printable)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class KeyRequest(_Request):
    """A key to be made."""

    owner: Owner | None = Field(None, description="Whose it is. Default: yours; another's takes the scope `admin`.")
    name: Annotated[str, Field(max_length=64), AfterValidator(_printable)] = Field("", description="What it is for.")
    scopes: list[Scope] = Field(
        [scope for scope in Scope if scope in WORKING_SCOPES],
        min_length=1,
        max_length=len(Scope),
        description="What it allows; none that your own key lacks.",
    )
    expire_seconds: int | None = Field(
        None, ge=1, le=MAX_KEY_SECONDS, description="How long it is good for. Default: until it is revoked."
    )


class QuotaRequest(_Request):
    """What an owner may have at the same time; null stands for the service's default."""

    max_running_jobs: int | None = Field(None, ge=0, le=MAX_JOBS, description="Jobs that run; further ones wait.")
    max_queued_jobs: int | None = Field(
        None, ge=0, le=MAX_JOBS, description="Jobs that wait; a further one is refused."
    )
    max_datasets: int | None = Field(None, ge=0, le=MAX_JOBS, description="Datasets; a further one is refused.")
    max_stored_bytes: int | None = Field(
        None, ge=0, le=MAX_STORED_BYTES, description="Bytes of all datasets together, as they are kept."
    )


def parse(model: type[M], document: Any) -> M:
    """The document as a request.

    Raises:
        InvalidArgument: with everything that is wrong with it.
    """
    value, problems = check(model, document)
    if value is None or problems:
        raise InvalidArgument("the request is not usable", problems=problems)
    return value


class _Named(_Request):
    owner: Owner


def owner_name(text: str) -> str:
    """`text`, if an owner can be called so.

    Raises:
        InvalidArgument: empty, too long or not printable.
    """
    return parse(_Named, {"owner": text}).owner
