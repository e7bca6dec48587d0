"""
The rules, as functions of values: no I/O, no threads, no SQL.

    values      what may be stored: names, durations, instants, documents
    clock       the only module that reads a clock
    retry       two budgets and a back-off
    ownership   epochs, reasons, and the record of who held a job
    failure     the text of an error, and what can be told from it
    job         jobs, from the wish to add one to the state that a reader sees
    lifecycle   the one table of legal transitions
    asked       what callers of the front door ask for, checked
"""
