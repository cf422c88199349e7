from __future__ import annotations

import pytest

from worker.masking import mask


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("using hf_AbCdEfGhIjKlMnOp for the hub", "hf_AbCdEfGhIjKlMnOp"),
        ("connect postgresql://ppo:s3cr3t@db/ppo", "s3cr3t"),
        ("Authorization: Bearer abcdef123456", "abcdef123456"),
        ("password=hunter22, next", "hunter22"),
        ('{"api_key": "k-123456"}', "k-123456"),
        ("HUB_TOKEN=abcd1234", "abcd1234"),
        ("the value is opensesame!", "opensesame!"),
    ],
)
def test_secrets_are_masked(text: str, secret: str) -> None:
    masked = mask(text, ["opensesame!"])
    assert secret not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "text", ["pad_token: <|endoftext|>", "tokens/responses_len_mean=12.5", "hf_home is set", "https://host/path"]
)
def test_ordinary_lines_stay_as_they_are(text: str) -> None:
    assert mask(text) == text
