"""Report to console, Markdown and JSON. The formats know reports, never the studies that made them."""
