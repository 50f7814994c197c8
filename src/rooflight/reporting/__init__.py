"""Shows a report on the console, as Markdown, JSON, CSV or HTML. Knows reports, not the studies that make them."""
