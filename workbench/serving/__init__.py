"""Turn views into a served site: pages, roles, endpoints for programs, and the tile of JupyterLab."""
