"""Turn each thing that an operator can name into a judge, one a file."""
