"""A report on the console, as Markdown, JSON, CSV or HTML. Formats know reports, not the studies that make them."""
