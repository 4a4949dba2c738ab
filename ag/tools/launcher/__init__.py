"""The launcher: starts a job's ranks on one or several hosts, and again if they are lost; `python -m ag launch`.

Knows hosts, processes and how they end; no tensor and no training.  `ag.__main__` calls it.
"""
