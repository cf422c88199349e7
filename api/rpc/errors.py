"""google.rpc.Status for every refusal: the same codes and problems as over HTTP."""

from __future__ import annotations

import re
from collections.abc import Sequence

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details
from google.rpc import status_pb2

from api.status import retry_after_seconds, status_of
from jobs.errors import Forbidden, IllegalTransition, InvalidSpec, JobsError, Problem, QuotaExceeded
from jobs.mask import mask

DOMAIN = "ppo.v1"

# Details travel in HTTP/2 trailers, and many clients drop the whole answer beyond 8 KiB of those.
_DETAILS_BYTES = 5000


def status(error: JobsError, request_id: str) -> status_pb2.Status:
    """The rich status of a refusal."""
    message = (
        error.message if type(error) is not JobsError else "the service failed at this call; its log has the reason"
    )
    parts: list[Message] = [
        details.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=_metadata(error)),
        details.RequestInfo(request_id=request_id),
    ]
    seconds = retry_after_seconds(error)
    if seconds is not None:
        retry = details.RetryInfo()
        retry.retry_delay.FromSeconds(seconds)
        parts.append(retry)
    if isinstance(error, QuotaExceeded):
        parts.append(_quota_failure(message))
    if error.problems:
        root = "spec" if isinstance(error, InvalidSpec) else ""
        parts.append(_bad_request(error.problems, root))
    code: int = status_of(error).grpc.value[0]
    return status_pb2.Status(code=code, message=_cut(message, 1000), details=[_packed(part) for part in parts])


def _quota_failure(message: str) -> details.QuotaFailure:
    violation = details.QuotaFailure.Violation(subject="owner", description=_cut(message, 500))
    return details.QuotaFailure(violations=[violation])


def _bad_request(problems: Sequence[Problem], root: str) -> details.BadRequest:
    """As many problems as fit, and how many were left out."""
    message = details.BadRequest()
    for index, problem in enumerate(problems):
        message.field_violations.append(_violation(problem, root))
        if message.ByteSize() > _DETAILS_BYTES:
            del message.field_violations[-1]
            left = f"{len(problems) - index} more problems do not fit here"
            message.field_violations.add(field="", description=left, reason="more_problems")
            break
    return message


def _violation(problem: Problem, root: str) -> details.BadRequest.FieldViolation:
    allowed = f"; allowed: {', '.join(map(str, problem.allowed))}" if problem.allowed else ""
    hint = (
        f"; did you mean `{problem.suggestion}`?"
        if problem.suggestion and problem.suggestion not in problem.detail
        else ""
    )
    return details.BadRequest.FieldViolation(
        field=mask(field_path(root, problem.pointer)),
        description=_cut(problem.detail + allowed + hint, 500),
        reason=problem.code,
    )


def field_path(root: str, pointer: str) -> str:
    """`/rewards/0/name` as google.rpc writes it: `spec.rewards[0].name` for the root `spec`."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    path = root + "".join(f"[{part}]" if re.fullmatch(r"\d+", part) else f".{part}" for part in parts)
    return path.removeprefix(".")


def _metadata(error: JobsError) -> dict[str, str]:
    if isinstance(error, Forbidden):
        return {"scope": error.scope}
    if not isinstance(error, IllegalTransition):
        return {}
    return {"state": error.state, "allowed_actions": ",".join(error.allowed_actions)}


def _packed(part: Message) -> Any:
    packed = Any()
    packed.Pack(part)
    return packed


def _cut(text: str, limit: int) -> str:
    """As much of a text as fits. A key that was sent to the wrong place must not come back."""
    text = mask(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."
