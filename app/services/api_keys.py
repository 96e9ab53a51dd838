"""API keys: `pp_<prefix>_<secret>`, of which only the prefix and a hash of the secret are kept."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import timedelta

from app.db.base import utc_now
from app.db.models import ApiKey
from app.db.session import Database
from app.repositories.api_keys import ApiKeyRepository

MARK = "pp"
SCOPES = ("read", "write")


def create_key(database: Database, name: str, scopes: Sequence[str], valid_for: timedelta | None) -> str:
    """Store a new key and answer it; it cannot be read again."""
    prefix, secret = secrets.token_hex(4), secrets.token_hex(32)
    now = utc_now()
    with database.write() as session:
        ApiKeyRepository(session).add(
            ApiKey(
                name=name,
                prefix=prefix,
                secret_sha256=_sha256(secret),
                scopes=list(scopes),
                created_at=now,
                expires_at=None if valid_for is None else now + valid_for,
            )
        )
    return f"{MARK}_{prefix}_{secret}"


def authenticate(database: Database, presented: str) -> ApiKey | None:
    """The key that was presented, if it is one of ours and still valid."""
    mark, _, rest = presented.partition("_")
    prefix, _, secret = rest.partition("_")
    if mark != MARK or not secret:
        return None
    with database.read() as session:
        key = ApiKeyRepository(session).by_prefix(prefix)
    if key is None or not hmac.compare_digest(key.secret_sha256, _sha256(secret)):
        return None
    if key.expires_at is not None and key.expires_at <= utc_now():
        return None
    return key


def any_key(database: Database) -> bool:
    """Whether a key exists, so that the service may listen to the network."""
    with database.read() as session:
        return ApiKeyRepository(session).any()


def _sha256(secret: str) -> str:
    # A plain hash is enough: the secret is 256 random bits, not a password that could be guessed.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
