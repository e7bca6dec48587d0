"""
What a task is, for everything that adds jobs: no worker is needed.

    task        a function that handles jobs of one name, and the way to add them with its own arguments
    signature   which functions can be tasks, what they take, where they run
    arguments   a handler's arguments: from a call to a payload, and back
    convert/    values that JSON has no form for, by their annotation
"""
