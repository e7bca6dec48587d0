"""Claims jobs, runs the handlers of their tasks, and settles them: `worker.py` is the map."""
