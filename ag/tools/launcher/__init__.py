"""The launcher of `python -m ag launch`: starts a job's ranks on hosts, and again if they are lost."""
