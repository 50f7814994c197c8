"""Says where the time of a trace went: steps, replays of graphs, idle stretches, the timeline."""
