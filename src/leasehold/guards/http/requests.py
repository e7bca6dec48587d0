"""What a request asks a gate for: its key, its credential, and whether it is guarded at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from ...core.marks import Writer
from ...errors import CredentialRefused, InvalidArgument, NoLease
from ...guard import Verifier
from ..gate import Gate
from .problems import ACTION, HEADER

Request = TypeVar("Request")

SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
_ACTIONS = ("seal", "mark")


class Asked(NamedTuple):
    """A guarded request."""

    key: str
    credential: str | None
    action: str | None

    def presented(self) -> str:
        """Return the credential, or raise `NoLease`."""
        if self.credential is None:
            raise NoLease(
                f"{self.key}: a write needs the header {HEADER} with a credential, as lease.credential(…) returns it."
            )
        return self.credential


class Policy(Generic[Request]):
    """Which requests are guarded, and what they present."""

    def __init__(
        self, key: Callable[[Request], str | None], safe_methods: Iterable[str], *, public_marks: bool = False
    ) -> None:
        if not callable(key):
            raise InvalidArgument(
                f"key= must be a function that takes the request and returns a key or None, not {key!r}."
            )
        self._key = key
        self._safe = frozenset(method.upper() for method in safe_methods)
        self.public_marks = public_marks

    def asked(
        self, request: Request, method: str, credentials: Sequence[str], actions: Sequence[str], *, acts: bool
    ) -> Asked | None:
        """
        Return what *request* asks for, or None if it is not guarded: a safe method, or a key of None.

        Raises `InvalidArgument` or `CredentialRefused` for a header that is there twice, or an unknown action.
        """
        action = _single(actions, ACTION)
        if action is None and method.upper() in self._safe:
            return None
        key = self._key(request)
        if key is None:
            return None
        if action is not None and (action not in _ACTIONS or not acts):
            raise InvalidArgument(
                f"the header {ACTION} is {action!r:.80}: it must be {' or '.join(_ACTIONS)}, and the service must have "
                "a gate."
            )
        if len(credentials) > 1:
            raise CredentialRefused(f"the header {HEADER} was sent {len(credentials)} times: send it once.")
        return Asked(key, credentials[0].strip() if credentials else None, action)


def _single(values: Sequence[str], name: str) -> str | None:
    if len(values) > 1:
        raise InvalidArgument(f"the header {name} was sent {len(values)} times: send it once.")
    return values[0].strip() if values else None


class Verified:
    """Stands where a gate would: it verifies the credential, and leaves the comparison to a fence in the handler."""

    def __init__(self, keys: Verifier, audience: str) -> None:
        self._keys = keys
        self._audience = audience

    def writer(self, asked: Asked) -> Writer:
        """Return whom the request speaks for. Raises `NoLease` and `CredentialRefused`."""
        return self._keys.verify(asked.presented(), audience=self._audience, key=asked.key)


def check_gate(gate: Any) -> Gate:
    """Return *gate* if it is one that takes credentials."""
    if not isinstance(gate, Gate):
        raise InvalidArgument(f"the middleware needs a Gate, not {gate!r}.")
    if not gate.takes_credentials:
        raise InvalidArgument("the gate takes no credentials: make it with Gate(url, keys=KeyRing(…), audience=…).")
    return gate
