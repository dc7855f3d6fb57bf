"""Root-mean-square normalisation of vectors."""
