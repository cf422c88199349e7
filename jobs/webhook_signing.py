"""Signatures of Standard Webhooks (v1, symmetric): what a sender and a receiver both compute.

No secret is stored. An endpoint's row holds a random salt, and the secret is its HMAC under the operator's pepper:
whoever reads the database cannot sign. Another pepper changes every secret, as it voids every API key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from pydantic import SecretStr

PREFIX = "whsec_"
_PURPOSE = b"ppo-service webhook secret v1:"


def new_salt() -> str:
    """The random part of a new secret."""
    return secrets.token_hex(32)


def secret_of(salt: str, pepper: SecretStr) -> str:
    """The signing secret, `whsec_` and base64 of 32 bytes."""
    key = hmac.digest(pepper.get_secret_value().encode(), _PURPOSE + salt.encode(), "sha256")
    return PREFIX + base64.b64encode(key).decode()


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the base64 of HMAC-SHA-256 over `id.timestamp.body`; `timestamp` in Unix seconds.

    Raises:
        ValueError: not a secret.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("a webhook's secret is `whsec_` and base64") from error
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
