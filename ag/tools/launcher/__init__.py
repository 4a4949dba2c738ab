"""The launcher: starts a job's ranks on one or several hosts, and again if they are lost; `python -m ag launch`."""
