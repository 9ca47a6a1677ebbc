"""Kubernetes: nodes, pods and machines into a fleet, and actions into cordons, taints, labels, evictions and deleted NodeClaims."""
