"""What every test of this folder may ask for."""

from tests.postgres.fixtures import server_url

__all__ = ["server_url"]
