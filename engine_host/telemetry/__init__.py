"""From scheduler steps to snapshots: collection, bounded rings, windows, percentiles."""
