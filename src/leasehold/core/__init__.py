"""
The rules, as functions of values: no I/O, no threads, no SQL.

    checks        validates names, texts, numbers and durations
    instants      datetimes as microseconds, and back
    documents     payloads and results as JSON
    ids           of jobs and of claims
    redaction     URLs without their passwords, and jobs without what is hidden
    wording       how messages show values and counts
    suggestions   advice for a name that does not exist
    clock         the only module that reads a clock
    retry         two budgets and a back-off
    retention     how long finished jobs, ids and events are kept
    ownership     epochs, reasons, and the record of who held a job
    failure       the text of an error, and its parser
    options       a job's options that no store compares
    meta          a job's own dict, carried and not read
    job           jobs, from the wish to add one to the state that a reader sees
    queues        queues, paused or not
    lifecycle     the one table of legal transitions
    inputs        validates the arguments of the verbs of Router and Lease
"""
