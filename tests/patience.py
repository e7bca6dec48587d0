"""How long a test waits for what should happen at once."""

# For a machine that is many times slower, or busy: only a test that fails waits so long.
PATIENCE_SECONDS = 120
