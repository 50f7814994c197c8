"""The rooflight command, one file for each verb. Heavy imports stay inside the verbs, so that --help is instant."""
