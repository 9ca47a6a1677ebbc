"""Turn documents of one format each into `workbench.model.Parsed`: pure functions, one format a file."""
