"""Credentials: what a guard believes without asking the store, and everything that it must not believe."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import pickle
import traceback
from typing import Any

import jwt
import pytest

from leasehold import (
    CredentialExpired,
    CredentialRefused,
    InvalidArgument,
    Lease,
    Router,
    Settled,
    StaleEpoch,
    Unsupported,
)
from leasehold.core.ownership import EPOCH_LIMIT
from leasehold.credentials import ENVIRONMENT, SIZE_LIMIT, CredentialKey, KeyRing, ring_of_environment
from leasehold.guard import Writer
from leasehold.testing import ManualClock

SECRET = b"a secret of thirty-two bytes, at least"
OLD = CredentialKey("old", "hs256", SECRET)
RING = KeyRing([OLD])

FACTS: dict[str, Any] = {
    "store": "store-1",
    "job_id": "report-3",
    "epoch": 1_700_000_000_000_007,
    "owner": "worker-0",
    "audience": "reports",
    "seconds": 60,
}
CLAIMS: dict[str, Any] = {
    "iss": "store-1",
    "sub": "report-3",
    "aud": "reports",
    "epoch": 7,
    "owner": "worker-0",
    "iat": 0,
    "keys": ["q3.csv"],
}


def part(value: object) -> str:
    """A part of a JWT, from an object or from JSON text."""
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def signed(claims: object = CLAIMS, secret: bytes = SECRET, **header: Any) -> str:
    """A JWT with an HMAC of *secret*, made by hand so that anything can stand in it."""
    head = part({"alg": "HS256", "kid": "old", "typ": "lease+jwt"} | header)
    body = f"{head}.{part(claims)}"
    mac = hmac.digest(secret, body.encode(), hashlib.sha256)
    return f"{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def refused(credential: Any, ring: KeyRing = RING, key: str = "q3.csv") -> CredentialRefused:
    """The refusal of *credential*, which must not show it."""
    with pytest.raises(CredentialRefused) as caught:
        ring.verify(credential, audience="reports", key=key)
    assert not isinstance(caught.value, CredentialExpired)
    assert len(str(caught.value)) < 1000
    return caught.value


@pytest.fixture
def lease() -> Lease:
    """A lease on a job without a lock."""
    router = Router()
    router.add("report-3")
    lease = router.claim("worker-0")
    assert lease is not None
    return lease


# What is minted is believed


def test_what_a_ring_mints_it_verifies() -> None:
    """Store, job, epoch and owner come back as they were given."""
    credential = RING.mint(**FACTS, keys=["q3.csv"])

    assert RING.verify(credential, audience="reports", key="q3.csv") == Writer(
        1_700_000_000_000_007, "worker-0", "store-1", "report-3"
    )
    assert jwt.get_unverified_header(credential) == {"alg": "HS256", "kid": "old", "typ": "lease+jwt"}


def test_a_credential_made_by_hand_is_the_same() -> None:
    """The helper of the hostile tests makes what would be accepted, so each refusal is for its own reason."""
    assert RING.verify(signed(), audience="reports", key="q3.csv").epoch == 7


def test_any_text_can_be_a_fact() -> None:
    """Beyond ASCII, too: a name is compared as it was given."""
    key = "Ünïcode/文書 🗝 .csv"
    credential = RING.mint(**FACTS | {"owner": "wörker", "audience": "bücher"}, keys=[key])

    assert credential.isascii()
    assert RING.verify(credential, audience="bücher", key=key).owner == "wörker"
    with pytest.raises(CredentialRefused):  # the same to a reader, and another key: nothing is normalised here
        RING.verify(RING.mint(**FACTS, keys=["u\u0308"]), audience="reports", key="\u00fc")


# Scope


def test_exact_keys_cover_themselves_alone() -> None:
    """Neither what is below them nor what begins like them."""
    credential = RING.mint(**FACTS, keys=["q3.csv", "q4.csv"])

    assert RING.verify(credential, audience="reports", key="q4.csv")
    for other in ("q3.csv.bak", "q3", "q3.csv/x", "Q3.csv", ""):
        assert refused(credential, key=other).fault == "scope"


def test_a_prefix_covers_what_begins_with_it() -> None:
    """It ends with a separator, so it covers no neighbour."""
    credential = RING.mint(**FACTS, prefixes=["customer:7/"])

    assert RING.verify(credential, audience="reports", key="customer:7/q3.csv")
    assert refused(credential, key="customer:70/q3.csv").fault == "scope"
    assert refused(credential, key="customer:7").fault == "scope"


@pytest.mark.parametrize("prefix", ["customer:7", "", "a"])
def test_a_prefix_without_a_separator_is_refused_on_both_sides(prefix: str) -> None:
    """It would cover neighbours, or everything: not minted, and not believed from another minter."""
    with pytest.raises(InvalidArgument):
        RING.mint(**FACTS, prefixes=[prefix])
    assert refused(signed(CLAIMS | {"keys": [], "prefixes": [prefix]}), key="customer:7").fault == "malformed"


def test_a_lock_covers_the_keys_that_the_guard_assigns_to_it() -> None:
    """And none of a guard that was not given the assignment."""
    credential = RING.mint(**FACTS, lock="customer:7")
    locked = RING.with_locks(lambda key: key.partition("/")[0] if "/" in key else None)

    assert locked.verify(credential, audience="reports", key="customer:7/q3.csv")
    assert refused(credential, locked, "customer:8/q3.csv").fault == "scope"
    assert refused(credential, locked, "q3.csv").fault == "scope"
    assert refused(credential, RING, "customer:7/q3.csv").fault == "scope"


def test_an_unscoped_credential_is_not_minted() -> None:
    """It would pass every key, and raise its mark for ever."""
    with pytest.raises(InvalidArgument, match="must name what it covers"):
        RING.mint(**FACTS)


@pytest.mark.parametrize(
    "scope",
    [
        *({}, {"keys": []}, {"keys": None}, {"keys": "q3.csv"}, {"keys": {"q3.csv": 1}}, {"keys": [["q3.csv"]]}),
        *({"keys": [7]}, {"keys": ["q3.csv", ""]}, {"lock": None}, {"lock": ""}, {"lock": 7}, {"prefixes": [None]}),
    ],
)
def test_an_unscoped_or_oddly_scoped_credential_is_not_believed(scope: dict[str, Any]) -> None:
    """Even with the right signature."""
    claims = {name: value for name, value in CLAIMS.items() if name != "keys"} | scope
    assert refused(signed(claims), RING.with_locks(lambda key: "")).fault == "malformed"


def test_one_text_is_not_a_list_of_keys() -> None:
    """Its letters would be."""
    with pytest.raises(InvalidArgument, match=r"keys=\['q3.csv'\]"):
        RING.mint(**FACTS, keys="q3.csv")


# Forgeries


def test_without_a_signature_it_is_refused() -> None:
    """The algorithm `none`, in any spelling, with or without a third part."""
    for alg in ("none", "None", "NONE", "nOnE", "", None, 0, ["HS256"], {"a": 1}):
        body = f"{part({'alg': alg, 'kid': 'old', 'typ': 'lease+jwt'})}.{part(CLAIMS)}"
        assert refused(f"{body}.").fault == "malformed"
        assert refused(f"{body}.AAAA").fault == "forged"
    assert refused(f"{part({'alg': 'none'})}.{part(CLAIMS)}.AA").fault == "malformed"


@pytest.mark.parametrize("alg", ["HS384", "HS512", "RS256", "EdDSA", "ES256", "hs256", "HS256 "])
def test_an_algorithm_is_the_keys_and_not_the_credentials(alg: str) -> None:
    """Whatever the header says. It is refused before any signature is computed, and the error names the right one."""
    assert "key 'old' is for HS256 only" in str(refused(signed(alg=alg)))
    if alg.startswith("HS") and alg.strip() != "HS256":
        genuine = jwt.encode(CLAIMS, SECRET * 2, algorithm=alg, headers={"kid": "old", "typ": "lease+jwt"})
        assert refused(genuine, KeyRing([CredentialKey("old", "hs256", SECRET * 2)])).fault == "forged"


def test_a_public_key_is_not_a_shared_secret() -> None:
    """The old confusion: who has the public key signs with HMAC, and the guard verifies with what it has."""
    private = CredentialKey.generate("old", "ed25519")
    public = KeyRing([private.public()])
    material = base64.urlsafe_b64decode(private.public().reveal().rpartition(":")[2] + "=")

    assert refused(signed(secret=material), public).fault == "forged"
    assert refused(signed(secret=material, alg="EdDSA"), public).fault == "forged"


def test_a_secret_is_not_a_private_key() -> None:
    """The other way round: a genuine EdDSA signature where the ring has a secret of that id."""
    private = CredentialKey("old", "ed25519", SECRET[:32])
    credential = KeyRing([private]).mint(**FACTS, keys=["q3.csv"])

    assert refused(credential, KeyRing([CredentialKey("old", "hs256", SECRET[:32])])).fault == "forged"


def test_a_signature_of_another_key_is_refused() -> None:
    """Of an unknown id, of a known id with another secret, and of one ring key under the id of another."""
    new = CredentialKey.generate("new")
    ring = KeyRing([new, OLD])

    assert refused(KeyRing([CredentialKey.generate("older")]).mint(**FACTS, keys=["q3.csv"]), ring).fault == "forged"
    assert refused(KeyRing([CredentialKey.generate("old")]).mint(**FACTS, keys=["q3.csv"]), ring).fault == "forged"
    assert refused(signed(kid="new"), ring).fault == "forged"
    for kid in (None, 7, "", ["old"], {"old": 1}, "../old", "OLD"):
        assert refused(signed(kid=kid), ring).fault == "forged"


@pytest.mark.parametrize(
    "typ", ["JWT", "jwt", "LEASE+JWT", "application/lease+jwt", "at+jwt", "", None, 7, ["lease+jwt"]]
)
def test_another_kind_of_token_of_the_same_key_is_refused(typ: object) -> None:
    """An access token that was signed with the same secret is no lease."""
    assert refused(signed(typ=typ)).fault == "forged"


@pytest.mark.parametrize("extra", ["crit", "b64", "jwk", "jku", "x5u", "x5c", "zip", "cty", "enc"])
def test_a_header_that_is_not_ours_is_refused(extra: str) -> None:
    """None of them means anything here, and some tell a verifier where to find the forger's key."""
    header: dict[str, Any] = {extra: ["b64"]}
    assert refused(signed(**header)).fault == "malformed"


def test_a_changed_payload_is_refused() -> None:
    """A greater epoch, another key, another owner: whatever is changed, the signature no longer fits."""
    head, _, mac = RING.mint(**FACTS, keys=["q3.csv"]).split(".")
    for change in ({"epoch": 9}, {"keys": ["q3.csv", "q4.csv"]}, {"owner": "thief"}, {}):
        assert refused(f"{head}.{part(CLAIMS | change)}.{mac}").fault == "forged"


def test_every_single_changed_character_is_noticed() -> None:
    """Wherever it is."""
    credential = RING.mint(**FACTS, keys=["q3.csv"])
    for place, old in enumerate(credential):
        for new in {"A", "B", "_", "."} - {old}:
            refused(credential[:place] + new + credential[place + 1 :])


@pytest.mark.parametrize(
    "text",
    [
        '{"iss":"store-1","sub":"report-3","aud":"reports","epoch":7,"epoch":9,"owner":"o","iat":0,"keys":["q3.csv"]}',
        '{"iss":"store-1","sub":"report-3","aud":"x","aud":"reports","epoch":7,"owner":"o","iat":0,"keys":["q3.csv"]}',
        '{"iss":"store-1","sub":"report-3","aud":"reports","epoch":7,"owner":"o","iat":0,"keys":[{"a":1,"a":2}]}',
        '{"iss":"store-1","sub":"report-3","aud":"reports","epoch":NaN,"owner":"o","iat":0,"keys":["q3.csv"]}',
        '{"iss":"store-1","sub":"report-3","aud":"reports","epoch":7,"owner":"\\ud800","iat":0,"keys":["q3.csv"]}',
        "[]",
        '"text"',
        "7",
        "null",
        "",
        "{",
        "[" * 4000,
        '{"epoch":' + "9" * 4000 + "}",
    ],
    ids=str.__len__,
)
def test_claims_that_readers_could_take_differently_are_refused(text: str) -> None:
    """Two claims of one name, what is not JSON, half a character; with the right signature."""
    assert refused(signed(text)).fault == "malformed"


def test_a_header_with_a_name_twice_is_refused() -> None:
    """PyJWT takes the last, another library the first."""
    head = part('{"alg":"none","alg":"HS256","kid":"old","typ":"lease+jwt"}')
    body = f"{head}.{part(CLAIMS)}"
    mac = base64.urlsafe_b64encode(hmac.digest(SECRET, body.encode(), hashlib.sha256)).decode().rstrip("=")

    assert refused(f"{body}.{mac}").fault == "malformed"


@pytest.mark.parametrize("epoch", [0, -1, EPOCH_LIMIT, 2**63, 2**200, True, False, 7.0, 7.5, "7", None, [7]])
def test_an_epoch_that_cannot_be_one_is_refused_on_both_sides(epoch: Any) -> None:
    """A mark at 2^53 would lock every owner out."""
    assert refused(signed(CLAIMS | {"epoch": epoch})).fault == "malformed"
    with pytest.raises(InvalidArgument):
        RING.mint(**FACTS | {"epoch": epoch}, keys=["q3.csv"])


def test_the_greatest_epoch_is_still_one() -> None:
    """One below the limit."""
    credential = RING.mint(**FACTS | {"epoch": EPOCH_LIMIT - 1}, keys=["q3.csv"])
    assert RING.verify(credential, audience="reports", key="q3.csv").epoch == EPOCH_LIMIT - 1


@pytest.mark.parametrize("claim", ["iss", "sub", "aud", "epoch", "owner", "iat"])
@pytest.mark.parametrize("value", ["missing", None, "", 7.5, ["reports"], {}, "x" * 256, "a\0b", True])
def test_a_claim_that_is_missing_or_odd_is_refused(claim: str, value: object) -> None:
    """Each of the required ones. A list of audiences, too."""
    claims = {name: one for name, one in CLAIMS.items() if name != claim or value != "missing"}
    if value != "missing":
        claims[claim] = value
    assert refused(signed(claims)).fault == "malformed"


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        ".",
        "..",
        "a.b",
        "a.b.c.d",
        "a.b.c ",
        " a.b.c",
        "a.b.c\n",
        "é.b.c",
        "a.b.c=",
        "a+b.c/d.e",
        b"a.b.c",
        None,
        7,
    ],
)
def test_what_is_not_a_compact_jwt_is_refused(value: Any) -> None:
    """Before anything is decoded."""
    assert refused(value).fault == "malformed"


def test_a_huge_credential_is_refused_unread() -> None:
    """A megabyte, with the right signature; and a ring does not mint what a guard would refuse."""
    huge = signed(CLAIMS | {"keys": ["q3.csv", *(f"{n}" * 50 for n in range(20_000))]})
    assert len(huge) > 1_000_000
    assert f"limit is {SIZE_LIMIT}" in str(refused(huge))
    with pytest.raises(InvalidArgument, match="cover its keys by a prefix"):
        RING.mint(**FACTS, keys=[f"{n}" * 50 for n in range(200)])


def test_a_credential_for_another_audience_is_refused() -> None:
    """A guard cannot use at another what was presented to it."""
    refusal = refused(RING.mint(**FACTS | {"audience": "invoices"}, keys=["q3.csv"]))
    assert refusal.fault == "audience"
    assert "'invoices'" in str(refusal)
    assert "'reports'" in str(refusal)


# Time


def test_an_expired_credential_is_not_a_stale_epoch() -> None:
    """Time refuses the credential and not the epoch; another is minted and passes."""
    clock = ManualClock()
    ring = KeyRing([OLD], clock=clock)
    credential = ring.mint(**FACTS, keys=["q3.csv"])

    clock.advance(59)
    assert ring.verify(credential, audience="reports", key="q3.csv")
    clock.advance(2)
    with pytest.raises(CredentialExpired) as caught:
        ring.verify(credential, audience="reports", key="q3.csv")
    assert not isinstance(caught.value, StaleEpoch)
    assert caught.value.fault == "expired"
    assert pickle.loads(pickle.dumps(caught.value)).fault == "expired"
    assert ring.verify(ring.mint(**FACTS, keys=["q3.csv"]), audience="reports", key="q3.csv")


def test_a_credential_without_expiry_stays_good() -> None:
    """As long as its key is in the ring."""
    clock = ManualClock()
    ring = KeyRing([OLD], clock=clock)
    credential = ring.mint(**FACTS | {"seconds": None}, keys=["q3.csv"])
    clock.advance(50 * 365 * 86_400)
    assert ring.verify(credential, audience="reports", key="q3.csv")


def test_a_minter_whose_clock_is_ahead_is_believed() -> None:
    """`iat` in the future refuses nothing: time does not decide who may write."""
    assert RING.verify(signed(CLAIMS | {"iat": 4_000_000_000}), audience="reports", key="q3.csv")


@pytest.mark.parametrize("expires", [True, "9999999999", 9e9, None, -1, 2**60])
def test_an_expiry_that_cannot_be_one_is_refused(expires: object) -> None:
    """It is not ignored."""
    assert refused(signed(CLAIMS | {"exp": expires})).fault == "malformed"


def test_a_forged_expired_credential_is_forged() -> None:
    """The signature comes first: `CredentialExpired` means authentic."""
    assert refused(signed(CLAIMS | {"exp": 1}, secret=b"x" * 32)).fault == "forged"


# Keys


def test_rotation_goes_by_key_id() -> None:
    """New key first; credentials of the old one are good until it is removed."""
    new = CredentialKey.generate("new")
    before = RING.mint(**FACTS, keys=["q3.csv"])
    both = KeyRing([new, OLD])
    after = both.mint(**FACTS, keys=["q3.csv"])

    assert jwt.get_unverified_header(after)["kid"] == "new"
    assert both.verify(before, audience="reports", key="q3.csv") == both.verify(after, audience="reports", key="q3.csv")
    assert refused(before, KeyRing([new])).fault == "forged"


def test_a_public_key_verifies_and_cannot_mint() -> None:
    """So the guard that has it cannot make itself an owner."""
    private = KeyRing([CredentialKey.generate("edge", "ed25519")])
    public = private.public()

    assert public.verify(private.mint(**FACTS, keys=["q3.csv"]), audience="reports", key="q3.csv")
    with pytest.raises(Unsupported, match="has only public keys"):
        public.mint(**FACTS, keys=["q3.csv"])
    with pytest.raises(InvalidArgument, match="no public part"):
        RING.public()


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `reveal` writes them, separated by commas or blanks; a change is noticed."""
    keys = [CredentialKey.generate("b", "ed25519"), OLD]
    monkeypatch.setenv(ENVIRONMENT, ",\n ".join(key.reveal() for key in keys))
    first = ring_of_environment()
    assert KeyRing(keys).verify(first.mint(**FACTS, keys=["q3.csv"]), audience="reports", key="q3.csv")
    assert ring_of_environment() is first

    monkeypatch.setenv(ENVIRONMENT, OLD.reveal())
    assert RING.verify(ring_of_environment().mint(**FACTS, keys=["q3.csv"]), audience="reports", key="q3.csv")

    monkeypatch.delenv(ENVIRONMENT)
    with pytest.raises(InvalidArgument, match=ENVIRONMENT):
        ring_of_environment()


def test_base64_of_either_alphabet_is_read() -> None:
    """As `openssl rand -base64 32` prints it."""
    material = bytes(range(224, 256))
    standard = base64.b64encode(material).decode()
    assert "/" in standard or "+" in standard
    assert CredentialKey.parse(f"k:hs256:{standard}").reveal() == CredentialKey("k", "hs256", material).reveal()


@pytest.mark.parametrize(
    "text",
    [
        "hunter2-hunter2",
        "kid:hunter2-hunter2",
        "kid:rs256:hunter2-hunter2",
        "kid:none:hunter2-hunter2",
        "kid:hs256:hunter2-hunter2!",
        "kid:hs256:hunter2-hunter2",
        "kid:ed25519:" + "hunter2-" * 20,
        "k d:hs256:hunter2-hunter2",
        "kid:hs256:hunter2-hunter2:x",
    ],
)
def test_a_wrong_key_is_refused_without_showing_it(text: str) -> None:
    """Neither in the message nor in what caused it."""
    with pytest.raises(InvalidArgument) as caught:
        KeyRing(text)
    assert "hunter2" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_secret_is_in_no_repr_error_or_log(caplog: pytest.LogCaptureFixture) -> None:
    """Not of the key, not of the ring, not of a refusal."""
    caplog.set_level(logging.DEBUG)
    key = CredentialKey("kid", "hs256", b"hunter2-" * 5)
    ring = KeyRing([key])
    encoded = key.reveal().rpartition(":")[2]
    shown = [repr(key), str(key), repr(ring), f"{ring}", repr([key]), str(refused(signed(), ring))]
    shown += [str(refused(signed(kid="kid"), ring)), *caplog.messages]

    assert not any("hunter2" in text or encoded in text for text in shown)


@pytest.mark.parametrize("algorithm", ["rs256", "ed25519-public"])
def test_a_key_that_cannot_be_generated_is_refused_by_its_name(algorithm: Any) -> None:
    """An unknown algorithm is not taken for a public key."""
    with pytest.raises(
        InvalidArgument, match=rf"makes 'hs256' or 'ed25519' keys, not '{algorithm}'\. For a public key, "
    ):
        CredentialKey.generate("kid", algorithm)


def test_a_short_secret_is_refused() -> None:
    """RFC 7518 asks for as many bytes as the hash has."""
    with pytest.raises(InvalidArgument, match="31 bytes"):
        CredentialKey("kid", "hs256", b"x" * 31)
    with pytest.raises(InvalidArgument, match="at least one key"):
        KeyRing([])
    with pytest.raises(InvalidArgument, match="each with a different id"):
        KeyRing([OLD, OLD])


# From a lease


def test_a_lease_mints_while_its_epoch_is_current() -> None:
    """And is refused from the takeover on: a stale owner gets no fresh credential."""
    clock = ManualClock()
    with Router(clock=clock) as router:
        router.add("report-3", lock="customer:7")
        lease = router.claim("worker-0", lease_seconds=30)
        assert lease is not None
        credential = lease.credential("reports", keys=["q3.csv"], ring=RING)
        assert RING.verify(credential, audience="reports", key="q3.csv") == Writer(
            lease.epoch, "worker-0", router.store.identity(), "report-3"
        )
        clock.advance(31)  # past its deadline, and not taken over: still its own
        assert lease.credential("reports", keys=["q3.csv"], ring=RING)
        assert router.claim("worker-1") is not None
        with pytest.raises(StaleEpoch) as caught:
            lease.credential("reports", keys=["q3.csv"], ring=RING)
        assert caught.value.owner == "worker-1"
        assert lease.lost


def test_a_lease_covers_its_jobs_lock_unless_told_otherwise() -> None:
    """With neither, nothing is minted."""
    with Router() as router:
        router.add("a", lock="customer:7")
        locked = router.claim("worker-0")
        router.add("b")
        bare = router.claim("worker-0")
        assert locked is not None
        assert bare is not None
        ring = RING.with_locks(lambda key: key)
        assert ring.verify(locked.credential("reports", ring=ring), audience="reports", key="customer:7")
        assert refused(locked.credential("reports", keys=["x"], ring=ring), ring, "customer:7").fault == "scope"
        with pytest.raises(InvalidArgument, match="give the job a lock"):
            bare.credential("reports", ring=ring)


def test_a_settled_lease_mints_nothing(lease: Lease) -> None:
    """Its job is done."""
    lease.complete()
    with pytest.raises(Settled):
        lease.credential("reports", keys=["q3.csv"], ring=RING)


def test_async_owners_mint_too(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the ring of the environment, here."""
    monkeypatch.setenv(ENVIRONMENT, OLD.reveal())
    credential = asyncio.run(lease.aio.credential("reports", keys=["q3.csv"]))
    assert RING.verify(credential, audience="reports", key="q3.csv").epoch == lease.epoch
