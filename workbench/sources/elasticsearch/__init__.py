"""Elasticsearch and OpenSearch: the lines of a job that matter into the files of an incident folder."""
