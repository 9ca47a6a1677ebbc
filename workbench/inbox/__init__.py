"""Turn failures of jobs, as they happen, into an inbox of triaged incidents that people are told of once."""
