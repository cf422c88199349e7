"""A reward server, as small as it can be: scores each response by how much it says that is new.

    python examples/reward_server.py --port 8765

A job uses it as a reward component (a worker calls addresses that are not public only if its operator allows them;
`ppo up` allows this machine):

    {"name": "news", "http": {"url": "http://127.0.0.1:8765/score"}}

examples/specs/reward-server.json is a whole job. POST /score with {"prompts": [...], "responses": [...],
"records": [...]} answers {"scores": [...]}: a number for each response, or null for one without a score. Put your own
reward in the place of `score`; a record is the prompt's JSON line with whatever it says beside the prompt. Calls
come in parallel, one per thread.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_BODY_BYTES = 64 * 2**20


def score(prompt: str, response: str, record: dict[str, Any]) -> float | None:
    """The share of words that neither the prompt nor the record's `known` words have; None without a word."""
    words = response.lower().split()
    known = {*prompt.lower().split(), *record.get("known", [])}
    return len(set(words) - known) / len(words) if words else None


class RewardHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    token: str | None = None

    def do_POST(self) -> None:
        """Score a batch."""
        length = int(self.headers.get("Content-Length", 0))
        if length > MAX_BODY_BYTES:
            self.close_connection = True
            self.answer(413, {"error": "too large"})
            return
        body = self.rfile.read(length)
        if self.path != "/score":
            self.answer(404, {"error": "POST to /score"})
        elif self.token is not None and self.headers.get("Authorization") != f"Bearer {self.token}":
            self.answer(401, {"error": "wrong token"})
        else:
            self.score(body)

    def score(self, body: bytes) -> None:
        """Answer with the scores of the batch in `body`."""
        try:
            batch = json.loads(body)
            items = list(zip(batch["prompts"], batch["responses"], batch["records"], strict=True))
        except (ValueError, KeyError, TypeError):
            self.answer(400, {"error": "give prompts, responses and records, as many of each"})
            return
        self.answer(200, {"scores": [score(*item) for item in items]})

    def answer(self, status: int, content: dict[str, Any]) -> None:
        """Send JSON."""
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description="A small reward server.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8765, help="0 takes any free port")
    parser.add_argument("--token", help="bearer token that callers must have")
    arguments = parser.parse_args()
    RewardHandler.token = arguments.token
    server = ThreadingHTTPServer((arguments.host, arguments.port), RewardHandler)
    print(f"listening on http://{arguments.host}:{server.server_port}/score", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
