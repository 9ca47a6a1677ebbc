"""Turn verdicts into what people read and machines parse: JSON, tables, Markdown, HTML."""
