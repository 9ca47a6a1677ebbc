"""Slurm: what accounting and controller know of a job into the files of an incident folder."""
