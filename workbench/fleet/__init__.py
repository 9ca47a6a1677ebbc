"""
Turn what happened to jobs, nodes and GPUs into an account of the fleet: objectives by cause, goodput, lemons, warnings, cost.

Everything here takes the frames of `workbench.fleet.tables` (from a ledger, a simulation or your own), and says numerator and
denominator beside each figure. Absent data is absent, never zero.
"""
