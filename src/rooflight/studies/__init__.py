"""One question each, from what runs to its report: neighbours that never import each other."""
