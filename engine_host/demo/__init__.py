"""`make demo`: the demo model, the load, and the run that ties them to a live console."""
