"""Turn the outside world (files, servers, this node) into documents and frames, one backend a file."""
