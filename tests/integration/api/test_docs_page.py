"""The documentation page: whole without another host, cached for good, and bound by its own policy."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tests.support.http_api import App
from tests.support.problem_json import problem


class Links(HTMLParser):
    """What a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href")]


def test_every_file_that_the_page_names_is_served_here(refusing: App):
    page = refusing.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    files = Links(page.text).found
    assert [name.rsplit("/", 1)[1] for name in files] == [
        "favicon.png",
        "swagger-ui.css",
        "swagger-ui-bundle.js",
        "start.js",
    ]
    assert not any("//" in name for name in files)
    for name in files:
        answer = refusing.get(f"/{name}")
        assert answer.status_code == 200
        assert len(answer.content) > 100
        assert "immutable" in answer.headers["cache-control"]
        plain = refusing.get(f"/{name}", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == answer.content
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    start = answer.text
    assert re.findall(r'url: "(.+)"', start) == ["openapi.json"]
    assert "//" not in start
    assert "validatorUrl: null" in start, "else it would ask a validator on the internet"


def test_the_policy_lets_nobody_else_in(refusing: App):
    page = refusing.get("/docs")
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert (policy["script-src"], policy["connect-src"]) == ("'self'", "'self'")
    assert "<script>" not in page.text, "the policy would not run it"
    assert page.headers["cache-control"] == "no-cache", "the page names the version of its files"


@pytest.mark.parametrize("path", ["/docs/old/start.js", "/docs/x/..%2F..%2Fsecret", "/redoc", "/docs/oauth2-redirect"])
def test_there_is_nothing_else(refusing: App, path: str):
    problem(refusing.get(path), 404, "route_not_found")
