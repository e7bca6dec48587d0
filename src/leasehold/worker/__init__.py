"""
Claims jobs, runs the handlers of their tasks, and settles them.

    worker         from start to stop
    shop           what its router gives it
    runner         the decisions: what begins, what is stopped, what is settled
    run            one claimed job on its way through the worker, and its states
    claiming       thread: claims while there is room
    dispatching    the slots: as many runs begin as there are
    executor       CONTRACT of what runs handlers
    executors/     threads, loop, process/
    calling        calls a handler, and turns its end into a settlement
    settling       thread: settles what many handlers have ended with, in one transaction
    renewing       thread: renews leases
    watching       thread: compares deadlines with the time
    progress       thread: writes what handlers report
    presence       thread: reports the worker, and picks up what is transferred to it
    tending        thread: upkeep of the store
    sleeper        what renewing, watching and progress have in common
    events         what happens to jobs, for listeners
    reporting      makes the events, counts and logs them
    lifespan       what is set up before the first handler, and taken down after the last
    drain          `router.drain`: the same on the calling thread, for tests
    until_empty    when a worker that ends by itself ends
    queue_names    warns of mistyped queues
    log            the logger
    signals        SIGTERM and SIGINT
"""
