"""Turn what schedulers, supervisors, verdicts, checks and the remediation journal tell into rows of the account's tables."""
