"""What every test of this folder may ask for."""

from .fixtures import place, server_url

__all__ = ["place", "server_url"]
