"""
Handlers in processes of their own, which can be killed.

    pool           the executor: which run goes to which process
    supervisor     one thread of the worker for each process: hands it runs, executes the verbs that it sends
    spawned        the process as its supervisor sees it: started, killed, reaped
    messages       what goes through the pipe between the two
    child          what runs in the process
    remote_store   the store as the process sees it
"""
