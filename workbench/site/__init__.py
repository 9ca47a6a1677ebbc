"""Turn a running site into snapshots of its fleet: nodes, GPUs, conditions, findings, jobs, suspects, with ages and what was not seen."""
