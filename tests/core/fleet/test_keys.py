from hypothesis import given
from hypothesis import strategies as st

from llmgw.core.fleet.keys import engine_key
from llmgw.core.ids import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


def test_a_key_is_hmac_sha256_of_the_replicas_id() -> None:
    # Made with: printf %s replica | openssl dgst -sha256 -hmac secret
    expected = "d9ee59b3a5d24f38a1a2813634c419f1a9cdda9a7370b9eae79b224595b6622d"
    assert engine_key(b"secret", ReplicaId("replica")) == expected


@given(st.binary(min_size=1), st.binary(min_size=1))
def test_replicas_and_secrets_have_keys_of_their_own(one: bytes, other: bytes) -> None:
    assert engine_key(one, A) != engine_key(one, B)
    # HMAC fills a short secret up with zero bytes, so those at the end do not count.
    if one.rstrip(b"\0") != other.rstrip(b"\0") and max(len(one), len(other)) <= 64:
        assert engine_key(one, A) != engine_key(other, A)
