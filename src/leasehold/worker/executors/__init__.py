"""Where handlers run: `threads` for `def`, `loop` for `async def`, `process/` for `process=True`."""
