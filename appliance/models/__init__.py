"""Models on disk and in the catalogue: found, judged by their headers, downloaded; no tensor byte is read."""
