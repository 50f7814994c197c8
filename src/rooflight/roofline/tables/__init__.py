"""Reports of an analysis: its document, facts, tables, pictures and notes."""
