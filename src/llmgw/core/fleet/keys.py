"""Engine keys: each replica's own, derived, never stored beside what they open."""

import hashlib
import hmac

from llmgw.core.ids import ReplicaId


def engine_key(secret: bytes, replica: ReplicaId) -> str:
    """Return the key of a replica's engines: HMAC-SHA256 of its id under the store's secret."""
    return hmac.new(secret, replica.encode(), hashlib.sha256).hexdigest()
