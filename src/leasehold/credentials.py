"""
Credentials: signed statements that an owner holds an epoch, for guards that cannot ask the store.

    CredentialKey     one key: its id, its algorithm and its secret, which is never shown
    KeyRing           mints with its first key that can sign, and verifies with the key that a credential names

A credential is a compact JWT of type `lease+jwt` with the claims `iss` (the store's id), `sub` (the job), `aud` (one
guard), `epoch`, `owner`, `iat`, optionally `exp`, and what it covers: `keys` (exact), `prefixes` or `lock`. One that
covers everything does not exist: the owner of any job with a higher epoch would pass every key, and would raise its
mark for ever.

PyJWT (the extra `signed`) computes and compares signatures. Headers and claims are read here, strictly: PyJWT does not
check `typ`, takes the last of two equal claims, and follows a clock where time must not decide (`iat`).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NoReturn, Self, get_args

from .core import checks
from .core.clock import Clock, SystemClock
from .core.marks import Writer
from .core.ownership import EPOCH_LIMIT
from .errors import CredentialExpired, CredentialRefused, InvalidArgument, Unsupported

__all__ = ["ENVIRONMENT", "Algorithm", "CredentialKey", "KeyRing"]

Algorithm = Literal["hs256", "ed25519", "ed25519-public"]

ENVIRONMENT = "LEASEHOLD_CREDENTIAL_KEYS"
TYPE = "lease+jwt"
SIZE_LIMIT = 6_000  # of a credential: servers commonly refuse a header above 8 KiB

_JWT_NAMES = {"hs256": "HS256", "ed25519": "EdDSA", "ed25519-public": "EdDSA"}
_SECRET_BYTES = 32  # of HS256 at least (RFC 7518, 3.2), of Ed25519 exactly
_KID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_COMPACT = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII)
_REMEMBERED = 1_000  # credentials that were verified
_HEADERS = {"alg", "kid", "typ"}
_FORMAT = f"kid:algorithm:base64, where the algorithm is one of {', '.join(get_args(Algorithm))}"


class CredentialKey:
    """
    A key that signs or verifies credentials; its secret appears in no repr, error or log.

    `hs256` signs and verifies with one secret of at least 32 bytes: each guard that verifies could mint, so it is for
    one trust domain. `ed25519` signs and verifies with a private key of 32 bytes, and `public()` of it only verifies:
    for guards that must not be able to mint. Ed25519 needs the package `cryptography`.

    Raises `InvalidArgument` for a key id, algorithm or secret that cannot be one.
    """

    __slots__ = ("_loaded", "_material", "algorithm", "kid")

    def __init__(self, kid: str, algorithm: Algorithm, material: bytes) -> None:
        if not isinstance(kid, str) or not _KID.fullmatch(kid):
            raise InvalidArgument(
                "the id of a credential key must have 1 to 64 characters: letters, digits, '.', '_' and '-'."
            )
        if algorithm not in _JWT_NAMES:
            raise InvalidArgument(f"the algorithm of a credential key must be one of {', '.join(get_args(Algorithm))}.")
        if not isinstance(material, bytes):
            raise InvalidArgument(f"the secret of key {kid!r} must be bytes, not {type(material).__name__}.")
        if len(material) < _SECRET_BYTES or (algorithm != "hs256" and len(material) != _SECRET_BYTES):
            least = "at least" if algorithm == "hs256" else "exactly"
            raise InvalidArgument(f"key {kid!r} has {len(material)} bytes; {algorithm} needs {least} {_SECRET_BYTES}.")
        self.kid = kid
        self.algorithm = algorithm
        self._material = material
        self._loaded: Any = None

    def __repr__(self) -> str:
        return f"<CredentialKey {self.kid!r} {self.algorithm}>"

    @classmethod
    def generate(cls, kid: str, algorithm: Literal["hs256", "ed25519"] = "hs256") -> Self:
        """Return a new random key."""
        if algorithm not in ("hs256", "ed25519"):
            raise InvalidArgument(
                f"generate() makes 'hs256' or 'ed25519' keys, not {algorithm!r}. For a public key, call public() of an "
                "'ed25519' key."
            )
        return cls(kid, algorithm, secrets.token_bytes(_SECRET_BYTES))

    @property
    def can_sign(self) -> bool:
        """Whether credentials can be minted with it."""
        return self.algorithm != "ed25519-public"

    def public(self) -> CredentialKey:
        """Return the key that verifies what this one signs, and cannot sign. Raises `InvalidArgument` for `hs256`."""
        if self.algorithm == "hs256":
            raise InvalidArgument(f"key {self.kid!r} is a shared secret and has no public part: use ed25519.")
        if not self.can_sign:
            return self
        return CredentialKey(self.kid, "ed25519-public", self.loaded().public_key().public_bytes_raw())

    def reveal(self) -> str:
        """Return the key **with its secret**, as `LEASEHOLD_CREDENTIAL_KEYS` takes it."""
        text = base64.urlsafe_b64encode(self._material).decode().rstrip("=")
        return f"{self.kid}:{self.algorithm}:{text}"

    @classmethod
    def parse(cls, text: str, what: str = "the key") -> Self:
        """Return the key that `reveal` wrote as *text*. An error names *what*, and nothing of the text."""
        parts = text.split(":")
        if len(parts) != 3 or not _KID.fullmatch(parts[0]) or parts[1] not in _JWT_NAMES:
            raise InvalidArgument(f"{what} is not {_FORMAT}. The value is not shown, since it may be a secret.")
        kid, algorithm, encoded = parts
        plain = encoded.rstrip("=").replace("+", "-").replace("/", "_")
        try:
            material = base64.b64decode(plain + "=" * (-len(plain) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidArgument(
                f"{what} ({kid!r}) is not in base64. The value is not shown, since it is a secret."
            ) from None
        return cls(kid, algorithm, material)  # type: ignore[arg-type]  # it is one of _JWT_NAMES

    # For the ring

    @property
    def jwt_algorithm(self) -> str:
        """The only `alg` that credentials of this key have."""
        return _JWT_NAMES[self.algorithm]

    def loaded(self) -> Any:
        """Return the key as PyJWT takes it."""
        if self._loaded is None:
            self._loaded = self._material if self.algorithm == "hs256" else self._ed25519()
        return self._loaded

    def _ed25519(self) -> Any:
        try:
            from cryptography.hazmat.primitives.asymmetric import ed25519
        except ImportError:
            raise Unsupported(
                f"key {self.kid!r} is an Ed25519 key, which needs the package `cryptography`: pip install cryptography."
            ) from None
        private, public = ed25519.Ed25519PrivateKey, ed25519.Ed25519PublicKey
        load: Any = private.from_private_bytes if self.can_sign else public.from_public_bytes
        return load(self._material)


class KeyRing:
    """
    Mints and verifies credentials.

    It mints with the first of *keys* that can sign, and verifies with any of them, by the key id in the credential. To
    rotate: put the new key first, keep the old one until no live lease has a credential of it, then remove it. Guards
    need the new key before the first credential that it signs.

    *keys* are `CredentialKey` values, or one text of `kid:algorithm:base64` entries that commas or blanks separate;
    without them `LEASEHOLD_CREDENTIAL_KEYS` is such a text. *lock_of* names the lock that a key of the guard belongs
    to, or None: without it, credentials that cover a lock are refused.

    Raises `InvalidArgument` if there is no key, or two have one id.
    """

    def __init__(
        self,
        keys: str | Iterable[CredentialKey] | None = None,
        *,
        lock_of: Callable[[str], str | None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if keys is None:
            keys = os.environ.get(ENVIRONMENT, "")
            if not keys.strip():
                raise InvalidArgument(f"no credential keys: pass KeyRing(keys), or set {ENVIRONMENT} to {_FORMAT}.")
        found = _parsed(keys) if isinstance(keys, str) else list(keys)
        self._keys = {key.kid: key for key in found}
        if not self._keys or len(self._keys) != len(found):
            raise InvalidArgument(f"a key ring needs at least one key, each with a different id, not {found!r}.")
        self._lock_of = lock_of
        self._verified: dict[str, dict[str, Any]] = {}  # claims of credentials whose signature was right
        self._clock: Clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"<KeyRing {', '.join(f'{key.kid!r} {key.algorithm}' for key in self._keys.values())}>"

    def with_locks(self, lock_of: Callable[[str], str | None]) -> KeyRing:
        """Return the same keys for a guard whose keys belong to the locks that *lock_of* names."""
        return KeyRing(self._keys.values(), lock_of=lock_of, clock=self._clock)

    def public(self) -> KeyRing:
        """Return a ring that verifies what this one mints, and cannot mint. Raises `InvalidArgument` for `hs256`."""
        return KeyRing([key.public() for key in self._keys.values()], lock_of=self._lock_of, clock=self._clock)

    # Minting

    def mint(
        self,
        *,
        store: str,
        job_id: str,
        epoch: int,
        owner: str,
        audience: str,
        keys: Iterable[str] = (),
        prefixes: Iterable[str] = (),
        lock: str | None = None,
        seconds: float | None,
    ) -> str:
        """
        Return a credential for *epoch* of *store*, for the guard *audience*; `lease.credential` is the usual way.

        It covers the *keys* exactly, every key that begins with one of *prefixes*, and the keys that the guard assigns
        to *lock*; at least one of them is needed. It is good for *seconds*, or for ever with None.

        Nothing is checked at a store. Raises `InvalidArgument` for a wrong fact or if it would be longer than 6,000
        characters, and `Unsupported` if no key of the ring can sign or PyJWT is not installed.
        """
        key = next((one for one in self._keys.values() if one.can_sign), None)
        if key is None:
            raise Unsupported(
                f"{self!r} has only public keys, which can verify credentials but not mint them: mint where a "
                "private key is."
            )
        claims: dict[str, Any] = {
            "iss": checks.name(store, "store"),
            "sub": checks.name(job_id, "job_id"),
            "aud": checks.name(audience, "audience"),
            "epoch": checks.whole(epoch, "epoch", least=1, most=EPOCH_LIMIT - 1),
            "owner": checks.name(owner, "owner"),
            "iat": self._clock.now() // 1_000_000,
            **_scope(keys, prefixes, lock),
        }
        if seconds is not None:
            lasts = checks.microseconds(seconds, "seconds")
            claims["exp"] = -(-(self._clock.now() + lasts) // 1_000_000)  # rounded up: never shorter than asked for
        payload = json.dumps(claims, separators=(",", ":")).encode()
        headers = {"typ": TYPE, "kid": key.kid}
        credential: str = _jws().encode(payload, key.loaded(), algorithm=key.jwt_algorithm, headers=headers)
        if len(credential) > SIZE_LIMIT:
            raise InvalidArgument(
                f"this credential would have {len(credential)} characters, and servers refuse long headers (the limit "
                f"is {SIZE_LIMIT}): cover its keys by a prefix or a lock, or mint several."
            )
        return credential

    @staticmethod
    def texts(values: Iterable[str], what: str) -> list[str]:
        """Return *values* as a list. Raises `InvalidArgument` for one text, whose letters would be taken for keys."""
        if isinstance(values, str):
            raise InvalidArgument(f"{what}= must be a list of strings: write {what}=[{_shown(values)}].")
        return list(values)

    # Verifying

    def verify(self, credential: str, *, audience: str, key: str) -> Writer:
        """
        Return the ownership that *credential* proves, if it is for *audience* and covers *key*.

        It does not tell whether the epoch is current: the guard's mark does. Raises `CredentialExpired` if it is
        authentic and too old, and `CredentialRefused` for every other fault.
        """
        # A request takes 50 µs less if it presents what an earlier one has (python benchmarks/guards.py --only HTTP).
        # What depends on the guard and on time is compared for each.
        claims = self._verified.get(credential) if isinstance(credential, str) else None
        if claims is None:
            claims = self._remember(credential, self._authentic(credential))
        if claims["aud"] != audience:
            _refuse(
                f"is for the audience {claims['aud']!r}, and this guard is for {audience!r}: "
                "mint one with lease.credential(audience)",
                "audience",
            )
        if not self._covers(claims, key):
            covered = {name: claims[name] for name in ("keys", "prefixes", "lock") if name in claims}
            _refuse(f"of job {claims['sub']!r} does not cover the key {key!r}: it covers {covered}", "scope")
        expires = claims.get("exp")
        if expires is not None and self._clock.now() >= expires * 1_000_000:
            raise CredentialExpired(
                f"the credential of job {claims['sub']!r} for {audience!r} expired at {expires} (seconds since 1970). "
                "The lease may still be valid: mint a new credential with lease.credential(audience).",
                fault="expired",
            )
        return Writer(claims["epoch"], claims["owner"], claims["iss"], claims["sub"])

    def _remember(self, credential: str, claims: dict[str, Any]) -> dict[str, Any]:
        if len(self._verified) >= _REMEMBERED:
            self._verified.clear()
        self._verified[credential] = claims
        return claims

    def _authentic(self, credential: object) -> dict[str, Any]:
        """Return the claims of *credential*, once its signature is known to be right and all of them well formed."""
        if not isinstance(credential, str):
            _refuse(f"must be text, not {type(credential).__name__}")
        if len(credential) > SIZE_LIMIT:
            _refuse(f"has {len(credential)} characters, and the limit is {SIZE_LIMIT}")
        parts = _COMPACT.fullmatch(credential)
        if parts is None:
            _refuse("is not a compact JWT (three parts of base64url, separated by dots)")
        header = _object(parts[1], "header")
        if header.keys() != _HEADERS:
            _refuse(f"must have the headers {', '.join(sorted(_HEADERS))} and no other, not {_some(header)}")
        if header["typ"] != TYPE:
            _refuse(f"has the type {_shown(header['typ'])}, not {TYPE!r}: another kind of token", "forged")
        known = self._keys.get(header["kid"]) if isinstance(header["kid"], str) else None
        if known is None:
            _refuse(f"names the key {_shown(header['kid'])}, which this ring does not have: {self!r}", "forged")
        if header["alg"] != known.jwt_algorithm:
            _refuse(
                f"has the algorithm {_shown(header['alg'])}, and key {known.kid!r} is for {known.jwt_algorithm} only",
                "forged",
            )
        self._check_signature(credential, known)
        return _claims(_object(parts[2], "claims"))

    @staticmethod
    def _check_signature(credential: str, key: CredentialKey) -> None:
        jws = _jws()
        try:
            # Of a private key the public part: PyJWT verifies with either.
            jws.decode_complete(credential, key.loaded(), algorithms=[key.jwt_algorithm])
        except _jwt().exceptions.PyJWTError:
            _refuse(f"is not signed by key {key.kid!r}: it was forged or changed, or the secrets differ", "forged")

    def _covers(self, claims: Mapping[str, Any], key: str) -> bool:
        if key in claims.get("keys", ()) or any(key.startswith(prefix) for prefix in claims.get("prefixes", ())):
            return True
        lock = claims.get("lock")
        return lock is not None and self._lock_of is not None and self._lock_of(key) == lock


def unverified(credential: str) -> Writer:
    """Return what *credential* says of its owner, for logs: no signature is checked. Raises `CredentialRefused`."""
    parts = _COMPACT.fullmatch(credential)
    if parts is None:
        _refuse("is not a compact JWT (three parts of base64url, separated by dots)")
    claims = _claims(_object(parts[2], "claims"))
    return Writer(claims["epoch"], claims["owner"], claims["iss"], claims["sub"])


# One ring for `lease.credential` without one, as long as the variable is what it was.
_from_environment: dict[str, KeyRing] = {}


def ring_of_environment() -> KeyRing:
    """Return the ring of `LEASEHOLD_CREDENTIAL_KEYS`, read anew when the variable has changed."""
    text = os.environ.get(ENVIRONMENT, "")
    if text not in _from_environment:
        ring = KeyRing()
        _from_environment.clear()
        _from_environment[text] = ring
    return _from_environment[text]


def _parsed(text: str) -> list[CredentialKey]:
    entries = text.replace(",", " ").split()
    return [CredentialKey.parse(entry, f"entry {n} of the credential keys") for n, entry in enumerate(entries, 1)]


def _scope(keys: Iterable[str], prefixes: Iterable[str], lock: str | None) -> dict[str, Any]:
    """Return the claims that say what a credential covers; raise `InvalidArgument` for everything or nothing."""
    exact = sorted({checks.name(key, "a key") for key in KeyRing.texts(keys, "keys")})
    begins = sorted({_prefix(prefix) for prefix in KeyRing.texts(prefixes, "prefixes")})
    found: dict[str, Any] = {"keys": exact, "prefixes": begins, "lock": checks.optional_name(lock, "lock")}
    scope = {name: value for name, value in found.items() if value}
    if not scope:
        raise InvalidArgument(
            "a credential must name what it covers: pass keys=[…] or prefixes=[…], or give the job a lock. A "
            "credential that covered every key would let this job's epoch lock out the owners of other keys for ever."
        )
    return scope


def _prefix(value: object) -> str:
    prefix = checks.name(value, "a prefix")
    if prefix[-1].isalnum():
        raise InvalidArgument(
            f"the prefix {prefix!r} must end with a separator such as '/' or ':': without one it would also "
            f"cover {prefix + '0'!r}."
        )
    return prefix


def _claims(claims: dict[str, Any]) -> dict[str, Any]:
    """Return *claims* if each that is needed is there and is what it must be; others are ignored (RFC 7519, 4)."""
    try:
        for name in ("iss", "sub", "aud", "owner"):
            checks.name(claims.get(name), name)
        checks.whole(claims.get("epoch"), "epoch", least=1, most=EPOCH_LIMIT - 1)
        checks.whole(claims.get("iat"), "iat", least=0, most=EPOCH_LIMIT)
        if "exp" in claims:
            checks.whole(claims["exp"], "exp", least=0, most=EPOCH_LIMIT)
        for name in ("keys", "prefixes"):
            if not isinstance(claims.get(name, []), list):
                raise InvalidArgument(f"{name} must be a list.")
        _scope(claims.get("keys", ()), claims.get("prefixes", ()), claims.get("lock"))
    except InvalidArgument as error:
        _refuse(f"has an invalid claim: {error}".rstrip("."))
    return claims


def _object(part: str, what: str) -> dict[str, Any]:
    """Return the JSON object of a *part* of a credential; one with a name twice is refused, since readers differ."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name occurs twice")
        return found

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        text = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode("utf-8")
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        why = "is nested too deeply" if isinstance(error, RecursionError) else "cannot be read"
        _refuse(f"is malformed: its {what} {why}")
    if not isinstance(value, dict):
        _refuse(f"is malformed: its {what} must be a JSON object")
    return value


def _refuse(why: str, fault: Literal["malformed", "forged", "audience", "scope"] = "malformed") -> NoReturn:
    raise CredentialRefused(f"the credential {why}.", fault=fault) from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _some(header: Mapping[str, Any]) -> str:
    return _shown(", ".join(sorted(map(str, header))))


def _jwt() -> Any:
    try:
        import jwt
    except ImportError:
        raise Unsupported("credentials need PyJWT: pip install PyJWT.") from None
    return jwt


def _jws() -> Any:
    return _jwt().api_jws
