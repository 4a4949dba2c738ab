"""Turn a recording of launches into a program, by the `PASSES` over a `graph` that `pipeline` lists.

`record` is the only name that other rooms import.
"""
