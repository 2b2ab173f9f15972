"""Who speaks: regions of speech, speaker vectors of windows, clusters, and turns."""
