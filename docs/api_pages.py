"""The pages in docs/api: one for each tag of the OpenAPI document, with the proto's words and examples of twins.py."""

from __future__ import annotations

import json
import pprint
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from api.context import Context
from api.http.app import create_app
from api.settings import ApiSettings
from api.status import TABLE
from docs.twins import NAMES, TWINS, Twin
from jobs.db import Database

PROTO = Path(__file__).parent.parent / "proto"
HTTP_ADDRESS = "http://127.0.0.1:8080"
GRPC_ADDRESS = "127.0.0.1:50051"

TITLES = {
    "jobs": "Jobs: submit, look up, steer",
    "progress": "Progress: events, metrics, samples, logs",
    "checkpoints": "Checkpoints",
    "datasets": "Datasets",
    "webhooks": "Webhooks",
    "errands": "Errands: engine work while the caller waits",
    "access": "Access: keys, quotas, audit",
    "catalogue": "Catalogue: what this service can do",
    "operations": "Operations: for probes and Prometheus",
}
"""A tag without a title is shown as it is."""

_HEAD = """\
# {title}

Made from the code, the proto and `docs/twins.py` by `python docs/generate.py`; change it there.

{operations}

"""

_EXAMPLES_HEAD = """\
The examples need {names}.
They speak to a service on this machine without keys; with keys, add
`-H "Authorization: Bearer $PPO_KEY"` or the metadata `("authorization", "Bearer …")`.

```sh
PPO_URL={http}
```
"""

_NAME = re.compile(r"\$([A-Z][A-Z_]*)")


@cache
def openapi() -> dict[str, Any]:
    """The OpenAPI document of this version."""
    url = "sqlite:///never-opened.db"
    context = Context(ApiSettings(database_url=url), Database(url))
    document: dict[str, Any] = create_app(context).openapi()
    context.db.dispose()
    return document


def pages() -> dict[str, str]:
    """File name, relative to docs, and text of every page."""
    by_tag: dict[str, list[str]] = {}
    for operation in _operations():
        by_tag.setdefault(operation["tags"][0], []).append(operation["operationId"])
    written = {f"api/{tag}.md": _page(tag, names) for tag, names in by_tag.items()}
    return {"api/README.md": _index(by_tag), **{name: _formatted(text) for name, text in written.items()}}


def _formatted(page: str) -> str:
    """With its Python as the rest of the repository's."""
    command = [Path(sysconfig.get_path("scripts")) / "ruff", "format", "--quiet", "--stdin-filename", "page.md", "-"]
    ended = subprocess.run(command, input=page, capture_output=True, text=True, check=True, cwd=PROTO.parent)
    return ended.stdout


def _operations() -> Iterator[dict[str, Any]]:
    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            yield {**operation, "path": path, "method": method.upper()}


def _index(by_tag: dict[str, list[str]]) -> str:
    found = {operation["operationId"]: operation for operation in _operations()}
    rows = [
        f"| [{name}]({tag}.md#{name}) | `{found[name]['method']} {found[name]['path']}` | {_rpcs(TWINS[name])} |"
        for tag, names in by_tag.items()
        for name in names
        if name in TWINS
    ]
    return _INDEX + "\n".join(rows) + "\n"


_INDEX = """\
# The API, operation by operation

Made from the code, the proto and `docs/twins.py` by `python docs/generate.py`; change it there.

REST and gRPC (`ppo.v1`) say the same, over one domain: the same fields, the same refusals, the same limits. A running
service has the OpenAPI document at `/openapi.json` and gRPC reflection. [The job spec](../spec.md) and
[the metrics](../metrics.md) have pages of their own.

- A refusal is `application/problem+json` with a stable `code`, or `google.rpc.Status` with that code as
  `ErrorInfo.reason`; `GET /problems` explains them all. Somebody else's job is not found, like one that does not exist.
- Lists come in pages: give `next_page_token` back as `page_token`, with the same filters. Null or empty: the last page.
  Of events that means: no more yet; ask again with the last `seq` as `after_seq`. Samples are those of one step.
- In gRPC a number that is 0 and a text that is empty count as absent where a parameter has a default.
- Every answer has an `X-Request-Id`, a refusal repeats it, and the service's log has it too.

| operation | REST | gRPC |
|---|---|---|
"""


def _rpcs(twin: Twin) -> str:
    return ", ".join(f"`{name}`" for name in (twin.rpc, *twin.also) if name) or f"none: {twin.http_only}"


def _page(tag: str, names: list[str]) -> str:
    found = {operation["operationId"]: operation for operation in _operations()}
    missing = [name for name in names if name not in TWINS]
    if missing:
        raise LookupError(f"no row in docs/twins.py for {', '.join(missing)}: its docstring says how to add one")
    listed = "\n".join(f"- [{name}](#{name}): `{found[name]['method']} {found[name]['path']}`" for name in names)
    head = _HEAD.format(title=TITLES.get(tag, tag.capitalize()), operations=listed)
    return head + _setup(names) + "\n" + "\n".join(_section(found[name], TWINS[name]) for name in names)


def _setup(names: list[str]) -> str:
    twins = [TWINS[name] for name in names]
    text = "".join(f"{twin.call}{twin.request}{twin.body}" for twin in twins)
    used = [f"`{name}`, {meaning}" for name, meaning in NAMES.items() if name in _NAME.findall(text)]
    needed = "; ".join(used) or "nothing but a running service"
    services = sorted({twin.rpc.split(".")[0] for twin in twins if twin.rpc})
    head = _EXAMPLES_HEAD.format(names=needed, http=HTTP_ADDRESS)
    return head + _python_setup(services) if services else head


def _python_setup(services: list[str]) -> str:
    modules = [f"{_snake(service)}_pb2{end}" for service in services for end in ("", "_grpc")]
    stubs = [f"{_snake(name)} = {_snake(name)}_pb2_grpc.{name}Stub(channel)" for name in services]
    lines = [
        "import grpc",
        "from google.protobuf.json_format import ParseDict",
        "",
        f"from api.rpc.v1 import {', '.join(modules)}",
        "",
        f'channel = grpc.insecure_channel("{GRPC_ADDRESS}")',
        *stubs,
    ]
    return "\n```python\n" + "\n".join(lines) + "\n```\n"


def _section(operation: dict[str, Any], twin: Twin) -> str:
    parts = [
        f"## {operation['operationId']}",
        f"`{operation['method']} {operation['path']}`, gRPC {_rpcs(twin)}",
        operation.get("description", operation.get("summary", "")),
        _parameters(operation),
        *(_rpc_words(name) for name in (twin.rpc, *twin.also) if name),
        _statuses(operation),
        f"```sh\n{_curl(twin)}\n```",
        f"```python\n{_python(twin)}\n```" if twin.rpc else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _parameters(operation: dict[str, Any]) -> str:
    rows = [
        f"| `{found['name']}` | {found['in']} | {_kind(found['schema'])} | {found.get('description', '')} |"
        for found in operation.get("parameters", [])
    ]
    return "\n".join(["| parameter | in | type | meaning |", "|---|---|---|---|", *rows]) if rows else ""


def _kind(schema: dict[str, Any]) -> str:
    """The type with its bounds and default."""
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    kind = kinds[0]
    name = kind["$ref"].rsplit("/", 1)[1] if "$ref" in kind else kind.get("type", "any")
    if name == "array":
        name = f"list of {_kind(kind['items'])}"
    signs = {"minimum": "≥", "maximum": "≤", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {kind[word]}" for word, sign in signs.items() if word in kind]
    default = [f"default `{schema['default']}`"] if schema.get("default") not in (None, []) else []
    return ", ".join([name, *bounds, *default])


def _statuses(operation: dict[str, Any]) -> str:
    rows = [
        f"| {status} | {answer['description'].replace('Successful Response', 'As asked.')} | {_grpc_codes(answer)} |"
        for status, answer in sorted(operation["responses"].items())
        if status != "default"
    ]
    return "\n".join(["| status | | gRPC |", "|---|---|---|", *rows])


def _grpc_codes(answer: dict[str, Any]) -> str:
    """What the refusals of one HTTP status are over gRPC."""
    codes = {kind.code: status.grpc.name for kind, status in TABLE.items()}
    return ", ".join(
        dict.fromkeys(codes[code] for code in re.findall(r"`(\w+)`", answer["description"]) if code in codes)
    )


def _curl(twin: Twin) -> str:
    method, path = twin.call.split(" ", 1)
    words = ["curl", *([] if method == "GET" else ["-X", method]), f'"$PPO_URL{path}"']
    lines = [f'-H "{name}: {value}"' for name, value in twin.headers.items()]
    if isinstance(twin.body, dict):
        lines += ['-H "Content-Type: application/json"', f"-d '{_shell(_json(twin.body))}'"]
    elif twin.body is not None:
        lines.append(f"--data-binary '{_shell(twin.body)}'")
    return " \\\n  ".join([" ".join(words), *lines])


def _json(body: dict[str, Any]) -> str:
    """A line for each part."""
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in body.items()) + "\n}"


def _shell(text: str) -> str:
    """Inside single quotes, with the shell's own names let through."""
    if "'" in text:
        raise ValueError("an example's body must not hold a single quote")
    return _NAME.sub(lambda match: f"'\"${match[1]}\"'", text)


def _python(twin: Twin) -> str:
    service, method = twin.rpc.split(".")
    input_type, _, streams_in, streams_out = _rpc(twin.rpc)[1:]
    kind = f"{_snake(service)}_pb2.{input_type}"
    messages = [_message(request, kind) for request in twin.requests]
    argument = "iter([\n" + "".join(f"    {message},\n" for message in messages) + "])" if streams_in else messages[0]
    call = f"{_snake(service)}.{method}({argument})"
    return f"for answer in {call}:\n    print(answer)" if streams_out else f"answer = {call}\nprint(answer)"


def _message(request: dict[str, Any], kind: str) -> str:
    if not request:
        return f"{kind}()"
    if all(isinstance(value, str | bytes | int | bool | float) for value in request.values()):
        return f"{kind}({', '.join(f'{name}={_literal(value)}' for name, value in request.items())})"
    return f"ParseDict(\n{_literal(request)},\n{kind}())"


def _literal(value: Any) -> str:
    text = pprint.pformat(value, width=100, sort_dicts=False)
    return re.sub(r"'\$([A-Z][A-Z_]*)'", r"\1", text)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


# --- the proto's own words ---

Rpc = tuple[str, str, str, bool, bool]


def _rpc_words(name: str) -> str:
    return f"`{name}`: {_rpc(name)[0]}"


def _rpc(name: str) -> Rpc:
    """A method's comment, its request and answer, and which of them are streams."""
    return _rpcs_of_the_proto()[name]


@cache
def _rpcs_of_the_proto() -> dict[str, Rpc]:
    found: dict[str, Rpc] = {}
    for file in _proto_files():
        words = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
        for at, service in enumerate(file.service):
            for number, method in enumerate(service.method):
                comment = " ".join(words.get((6, at, 2, number), "").split())
                kinds = [kind.rsplit(".", 1)[1] for kind in (method.input_type, method.output_type)]
                streams = method.client_streaming, method.server_streaming
                found[f"{service.name}.{method.name}"] = (comment, kinds[0], kinds[1], *streams)
    return found


def _proto_files() -> list[FileDescriptorProto]:
    """The proto with its comments, which the generated code lacks."""
    sources = [str(path.relative_to(PROTO)) for path in sorted(PROTO.glob("ppo/v1/*.proto"))]
    own = resources.files("grpc_tools") / "_proto"
    with tempfile.NamedTemporaryFile(suffix=".binpb") as out:
        options = [f"-I{PROTO}", f"-I{own}", "--include_source_info", f"--descriptor_set_out={out.name}"]
        if protoc.main(["protoc", *options, *sources]):
            raise ValueError("the proto cannot be read; protoc has said why")
        return list(FileDescriptorSet.FromString(out.read()).file)
