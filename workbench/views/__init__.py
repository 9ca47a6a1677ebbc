"""Turn case files, snapshots and inboxes into pages: state and layout, the same in notebooks and served."""
