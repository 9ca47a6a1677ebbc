"""Turn questions of an assistant (Model Context Protocol) into answers: read-only, below given roots, log text marked as data."""
