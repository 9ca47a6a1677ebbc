"""Turn actions into changes of a cluster: Kubernetes, Slurm, a site's own commands, tickets; each behind `contract.Executor`."""
