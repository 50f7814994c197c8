"""The command line: one file a verb. Heavy imports stay inside the verbs, so that --help is instant."""
