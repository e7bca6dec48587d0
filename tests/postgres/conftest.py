"""What every test of this folder may ask for."""

from .fixtures import kept_sessions, place, server_url, store

__all__ = ["kept_sessions", "place", "server_url", "store"]
