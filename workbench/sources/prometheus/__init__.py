"""Prometheus and its kin: a job's window of metrics into the files of an incident folder."""
