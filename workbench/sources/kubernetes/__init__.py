"""Kubernetes: a job's pods, nodes, events and owners into the files of an incident folder."""
